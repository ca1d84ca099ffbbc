"""The walk over decoders in which some layers see only the last W rows."""

from typing import Any

from dflash_mlx.cache import KVCache, LayerCache, RotatingKVCache
from dflash_mlx.models.targets.decoder import DecoderTarget


class WindowedTarget(DecoderTarget):
    """A decoder of full and windowed layers; a family says which are which."""

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer that keeps rows."""
        return [self._cache(self._slides(layer)) for layer in self._body.layers]

    def _cache(self, slides: bool) -> LayerCache:
        return RotatingKVCache(self._args.sliding_window) if slides else KVCache()

    def _slides(self, layer: Any) -> bool:
        """Whether a layer sees a window only."""
        raise NotImplementedError
