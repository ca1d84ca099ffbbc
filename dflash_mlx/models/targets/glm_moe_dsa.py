"""GLM-5: latent attention over rows that an indexer picks by keys of its own."""

from typing import ClassVar

from dflash_mlx.cache import CacheList, LatentCache, LayerCache
from dflash_mlx.models.targets.decoder import DecoderTarget


class GlmMoeDsaTarget(DecoderTarget):
    """An mlx-lm `glm_moe_dsa` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("glm_moe_dsa",)

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer: compressed rows, and the indexer's keys."""
        return [CacheList(LatentCache(), LatentCache()) for _ in self._body.layers]
