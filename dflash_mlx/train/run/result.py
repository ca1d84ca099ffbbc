"""Publishes a trained draft as a folder that `chat --draft` and `convert` read.

Must not know how the draft was trained.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx import __version__
from dflash_mlx.errors import BadRequest
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.pairs.manifest import Manifest, Origin, draft_facts
from dflash_mlx.system.atomic import replace_file
from dflash_mlx.system.paths import bare_name
from dflash_mlx.train.data.corpus import ShardFolder
from dflash_mlx.train.data.samples import Samples, drop_summary
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.run.report import curves_page, model_card, summary_line
from dflash_mlx.train.run.setup import TrainingSetup

RECORD = "training.json"
_CODEBOOKS = ("predecessor_codebook.weight", "successor_codebook.weight")
_FULL_DISK = "free disk space and continue with --resume"


def check_out(out: Path, force: bool) -> None:
    """Check that `out` may be written: it is missing, empty, or a result of `train`.

    With `force`, another model may be replaced as well.

    Raises:
        BadRequest: `out` is something else.
    """
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise BadRequest(f"{out} is not a folder; choose another with -o")
    if not any(out.iterdir()) or (out / RECORD).is_file():
        return
    if not force:
        raise BadRequest(
            f"{out} exists and is not a result of training; choose another with -o, or replace it "
            "with --force"
        )
    if not (out / "config.json").is_file():
        raise BadRequest(
            f"{out} is not a model and --force replaces models only; choose another with -o"
        )


def run_facts(
    setup: TrainingSetup, recipe: Recipe, trained: Samples, held_out: Samples, shards: ShardFolder
) -> dict[str, Any]:
    """Return what is recorded about a run, as plain values: enough to judge and to repeat it."""
    target, config, data = setup.target, setup.config, setup.data
    dropped: Counter[str] = Counter()
    for shard in shards if data.generated else ():
        dropped += shard.dropped
    return {
        "target": {
            "name": target.name,
            "revision": target.revision,
            "identity": target.identity,
            "family": target.loaded.target.shape.family,
        },
        "init": config.init and bare_name(config.init),
        "parameters": setup.initial.parameters,
        "thinking": target.thinking,
        "data": {
            "source": data.source,
            "n_samples": len(trained),
            "n_held_out": len(held_out),
            "answer_tokens": trained.answer_tokens,
            "answers": config.answer_sampling.described() if data.generated else None,
            "dropped": "; ".join(part for part in (data.dropped, drop_summary(dropped)) if part),
        },
        "recipe": asdict(recipe),
        "machine": f"{setup.machine.chip}, {setup.machine.device}",
        "computed_in": "float32" if target.dtype == mx.float32 else "bfloat16",
        "made_with": {
            "dflash-mlx": __version__,
            "mlx": version("mlx"),
            "mlx-lm": version("mlx-lm"),
        },
    }


def publish(
    out: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, mx.array],
    facts: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
) -> None:
    """Write the result to `out`, replacing what `check_out` accepted there.

    `config` is the draft's `config.json`. Weights are stored in bfloat16.

    Raises:
        DFlashError: the disk is full; the earlier content of `out` is unchanged.
    """
    partial, replaced = (out.with_name(f".{out.name}.{part}") for part in ("partial", "replaced"))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    draft = read_draft_config(config)
    try:
        _write_json(partial / "config.json", config)
        stored = {_stored_name(name): _stored(array) for name, array in weights.items()}
        replace_file(
            partial / "model.safetensors",
            lambda file: mx.save_safetensors(str(file), stored, {"format": "mlx"}),
            _FULL_DISK,
        )
        _write_json(partial / RECORD, {**facts, "history": list(history)})
        _write(partial / "README.md", model_card(out.name, facts, draft, history))
        title = f"{out.name}: a draft for {facts['target']['name']}"
        _write(partial / "curves.html", curves_page(title, summary_line(facts), history))
        origin = Origin(source="dflash-mlx train", options={"seed": facts["recipe"]["seed"]})
        Manifest(draft=draft_facts(draft), draft_origin=origin, thinking=facts["thinking"]).write(
            partial
        )
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if out.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        out.rename(replaced)
    partial.rename(out)
    shutil.rmtree(replaced, ignore_errors=True)


def _stored_name(name: str) -> str:
    """Return the name of a tensor in published drafts, which store codebooks as bare arrays."""
    return name.removesuffix(".weight") if name.endswith(_CODEBOOKS) else name


def _stored(array: mx.array) -> mx.array:
    return array.astype(mx.bfloat16) if mx.issubdtype(array.dtype, mx.floating) else array


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    _write(file, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _write(file: Path, text: str) -> None:
    replace_file(file, lambda partial: partial.write_text(text, encoding="utf-8"), _FULL_DISK)
