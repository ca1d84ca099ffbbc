"""Qwen3 mixture of experts (Coder-30B-A3B): Qwen3's attention, routed feed-forward layers."""

from typing import ClassVar

from dflash_mlx.models.targets.decoder import DecoderTarget


class Qwen3MoeTarget(DecoderTarget):
    """An mlx-lm `qwen3_moe` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_moe",)
