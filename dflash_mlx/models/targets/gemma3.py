"""Gemma 3: five windowed layers to a full one, scaled embeddings."""

from typing import Any, ClassVar

import mlx.core as mx

from dflash_mlx.models.targets.windowed import WindowedTarget


class Gemma3Target(WindowedTarget):
    """An mlx-lm `gemma3` (with its text model inside) or `gemma3_text` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("gemma3", "gemma3_text")

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n], scaled by the root of D."""
        embedded = super().embed(tokens)
        # rounded to bfloat16 whatever the weights are, as the model was trained
        scale = mx.array(self._args.hidden_size**0.5, mx.bfloat16)
        return embedded * scale.astype(embedded.dtype)

    def _slides(self, layer: Any) -> bool:
        return bool(layer.self_attn.is_sliding)
