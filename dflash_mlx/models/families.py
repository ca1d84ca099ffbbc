"""Which file walks which family of targets."""

from typing import Any

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.models.decoder import DecoderTarget
from dflash_mlx.models.llama import LlamaTarget
from dflash_mlx.models.qwen3 import Qwen3Target
from dflash_mlx.models.qwen3_moe import Qwen3MoeTarget

FAMILIES: tuple[type[DecoderTarget], ...] = (LlamaTarget, Qwen3Target, Qwen3MoeTarget)


def family_of(model_type: str, source: str) -> type[DecoderTarget]:
    """Return the walk for an mlx-lm `model_type`.

    Raises:
        UnsupportedModel: no file of ours walks that family.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = sorted(name for family in FAMILIES for name in family.model_types)
    raise UnsupportedModel(
        f"{source} is of family {model_type!r}; targets that work here: {', '.join(known)}"
    )


def is_supported(config: dict[str, Any]) -> bool:
    """Whether a `config.json` belongs to a family that is walked here."""
    return any(config.get("model_type") in family.model_types for family in FAMILIES)
