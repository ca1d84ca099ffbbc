"""What is written down about a run: enough to judge its result and to make it again."""

from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from dflash_mlx import __version__
from dflash_mlx.system.machine import Machine
from dflash_mlx.system.paths import bare_name
from dflash_mlx.train.preparing import Prepared
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.samples import Samples, counted
from dflash_mlx.train.shards import Shards


def facts_of(
    prepared: Prepared, recipe: Recipe, trained: Samples, held: Samples, shards: Shards
) -> dict[str, Any]:
    """Return the facts of a run whose corpus is whole, as plain values."""
    opened, config, data = prepared.opened, prepared.config, prepared.data
    dropped: Counter[str] = Counter()
    for shard in shards if data.writes else ():
        dropped += shard.dropped
    return {
        "target": {
            "name": opened.name,
            "revision": opened.revision,
            "identity": opened.identity,
            "family": opened.loaded.target.shape.family,
        },
        "init": config.init and bare_name(config.init),
        "parameters": prepared.beginning.parameters,
        "thinking": opened.thinking,
        "data": {
            "source": data.source,
            "n_samples": len(trained),
            "n_held_out": len(held),
            "answer_tokens": trained.answer_tokens,
            "answers": config.answers.described() if data.writes else None,
            "dropped": "; ".join(part for part in (data.dropped, counted(dropped)) if part),
        },
        "recipe": asdict(recipe),
        "machine": _described(prepared.machine),
        "computed_in": "float32" if opened.dtype == mx.float32 else "bfloat16",
        "made_with": {
            "dflash-mlx": __version__,
            "mlx": version("mlx"),
            "mlx-lm": version("mlx-lm"),
        },
    }


def _described(machine: Machine) -> str:
    return f"{machine.chip}, {machine.device}"
