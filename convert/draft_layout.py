"""A draft's tensors under the runtime's names, from any of the layouts drafts come in."""

from collections.abc import Iterable, Mapping

import mlx.nn as nn

from dflash_mlx.convert.layout import Layout, check_complete
from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.models.draft_config import DraftConfig

_CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
"""Published DFlash 2 files hold these as bare arrays; as embeddings they can be quantized."""

_TRAINING_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
"""What speculators and old exports store beside the draft: copies of the target's weights."""

_MAPS = ("d2t", "t2d")
"""Between a reduced draft vocabulary and the target's; they are tables, never quantized."""


def runtime_name(name: str) -> str | None:
    """Return what the runtime calls a draft's tensor; None for one that it has no use for."""
    name = name.removeprefix("model.")
    if name in _CODEBOOKS:
        return f"{name}.weight"
    return None if name.endswith(_TRAINING_ONLY) else name


def draft_layout(
    config: DraftConfig, tensors: Mapping[str, Rows], model: nn.Module, source: str
) -> Layout:
    """Return the layout of a draft whose files hold `tensors`, for the module `model`.

    Raises:
        BadCheckpoint: tensors are missing, left over or misshapen, or two take one name.
    """
    renamed: dict[str, Rows] = {}
    for name, rows in tensors.items():
        ours = runtime_name(name)
        if ours in renamed:
            raise BadCheckpoint(f"{source} holds {ours!r} under two names; give one build of it")
        if ours:
            renamed[ours] = rows
    maps = {name for name in _MAPS if name in renamed and config.draft_vocab_size}
    weights = {name: rows for name, rows in renamed.items() if name not in maps}
    check_complete(weights, model, source)
    quantizable = {
        path: True for path, module in model.named_modules() if hasattr(module, "to_quantized")
    }
    return Layout(renamed, quantizable, lambda name: True)


def draft_module(config: DraftConfig, names: Iterable[str]) -> nn.Module:
    """Return the runtime's module for a draft whose files hold `names`, nothing computed."""
    # mlx-lm's layers take most of a second to import
    from dflash_mlx.models.draft import DraftModel

    ours = {runtime_name(name) for name in names}
    return DraftModel(config, "embed_tokens.weight" in ours, "lm_head.weight" in ours)
