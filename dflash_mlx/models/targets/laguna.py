"""Laguna: windowed and full layers with their own numbers of heads, routed experts."""

from typing import Any, ClassVar

from dflash_mlx.models.targets.windowed import WindowedTarget


class LagunaTarget(WindowedTarget):
    """An mlx-lm `laguna` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("laguna",)

    def _slides(self, layer: Any) -> bool:
        return bool(layer.use_sliding)
