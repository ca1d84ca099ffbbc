"""Qwen3 dense: full attention with normed queries and keys, tied or own head."""

from typing import ClassVar

from dflash_mlx.models.targets.decoder import DecoderTarget


class Qwen3Target(DecoderTarget):
    """An mlx-lm `qwen3` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3",)
