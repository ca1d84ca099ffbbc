"""Llama and its namesakes (SmolLM2, Llama-3.1): full or windowed layers, tied or own head."""

from typing import Any, ClassVar

from dflash_mlx.models.targets.windowed import WindowedTarget


class LlamaTarget(WindowedTarget):
    """An mlx-lm `llama` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("llama",)

    def _slides(self, layer: Any) -> bool:
        return bool(layer.use_sliding)
