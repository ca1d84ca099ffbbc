"""LongCat-Flash: two latent attentions in each layer, experts of which some do nothing."""

from typing import ClassVar

from dflash_mlx.cache import CacheList, LatentCache, LayerCache
from dflash_mlx.models.targets.decoder import DecoderTarget


class LongcatFlashTarget(DecoderTarget):
    """An mlx-lm `longcat_flash` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("longcat_flash",)

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer: compressed rows of both attentions."""
        return [CacheList(LatentCache(), LatentCache()) for _ in self._body.layers]
