"""Targets in which some layers attend to the last W tokens only (sliding-window attention)."""

from typing import Any

from dflash_mlx.cache import KVCache, LayerCache, RotatingKVCache
from dflash_mlx.models.targets.decoder import DecoderTarget


class WindowedTarget(DecoderTarget):
    """A decoder of full and windowed layers, such as Llama with `layer_types` and Laguna."""

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer that keeps rows."""
        return [self._cache(self._is_windowed(layer)) for layer in self._body.layers]

    def _cache(self, is_windowed: bool) -> LayerCache:
        return RotatingKVCache(self._args.sliding_window) if is_windowed else KVCache()

    def _is_windowed(self, layer: Any) -> bool:
        """Return whether a layer has a window; mlx-lm's modules keep the flag in two places."""
        if hasattr(layer, "use_sliding"):
            return bool(layer.use_sliding)
        return bool(layer.self_attn.is_sliding)


class GptOssTarget(WindowedTarget):
    """gpt-oss: windowed and full layers alternate, with attention sinks and routed experts."""

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [self._cache(kind == "sliding_attention") for kind in self._body.layer_types]
