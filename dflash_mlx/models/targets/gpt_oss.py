"""gpt-oss: windowed and full layers in turn, attention sinks, routed experts with biases."""

from typing import Any, ClassVar

from dflash_mlx.cache import LayerCache
from dflash_mlx.models.targets.windowed import WindowedTarget


class GptOssTarget(WindowedTarget):
    """An mlx-lm `gpt_oss` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("gpt_oss",)

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [self._cache(kind == "sliding_attention") for kind in self._body.layer_types]

    def _context_length(self) -> int:
        """What YaRN stretches to; mlx-lm keeps no other length of these models."""
        scaling: dict[str, Any] = self._args.rope_scaling or {}
        original = scaling.get("original_max_position_embeddings")
        return int(original * scaling.get("factor", 1)) if original else super()._context_length()
