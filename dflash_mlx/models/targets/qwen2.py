"""Qwen2 and Qwen2.5 dense: full attention with biases, tied or own head."""

from typing import ClassVar

from dflash_mlx.models.targets.decoder import DecoderTarget


class Qwen2Target(DecoderTarget):
    """An mlx-lm `qwen2` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen2",)
