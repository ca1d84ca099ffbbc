"""Llama and its namesakes (SmolLM2, Llama-3.1): full attention, tied or own head."""

from typing import ClassVar

from dflash_mlx.models.decoder import DecoderTarget


class LlamaTarget(DecoderTarget):
    """An mlx-lm `llama` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("llama",)
