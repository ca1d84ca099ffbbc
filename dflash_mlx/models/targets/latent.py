"""Targets with latent attention, which caches compressed rows instead of keys and values."""

from dflash_mlx.cache import CacheList, LatentCache, LayerCache
from dflash_mlx.models.targets.decoder import DecoderTarget


class LatentTarget(DecoderTarget):
    """DeepSeek-V3 and Kimi K2: one compressed row per token and layer."""

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [LatentCache() for _ in self._body.layers]


class PairedLatentTarget(DecoderTarget):
    """Two compressed rows per token and layer.

    LongCat-Flash has two attentions in a layer; GLM-5 (`glm_moe_dsa`) caches the keys of its
    indexer beside the rows of its attention.
    """

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [CacheList(LatentCache(), LatentCache()) for _ in self._body.layers]
