"""LFM2 and LFM2.5: gated short convolutions, with full attention in some layers."""

from typing import Any

import mlx.core as mx

from dflash_mlx.cache import ConvolutionCache, KVCache, LayerCache, Mask
from dflash_mlx.models.targets.decoder import DecoderTarget


class Lfm2Target(DecoderTarget):
    """A decoder whose convolution layers cache the last inputs of their kernel."""

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [
            KVCache() if layer.is_attention_layer else ConvolutionCache(layer.conv.L_cache)
            for layer in self._body.layers
        ]

    def run_layer(self, layer: Any, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
        """Return a layer's output [1, n, D] and append its rows to `cache`."""
        if layer.is_attention_layer:
            return super().run_layer(layer, hidden, mask, cache)
        hidden = hidden + _short_convolution(layer.conv, layer.operator_norm(hidden), cache)
        output: mx.array = hidden + layer.feed_forward(layer.ffn_norm(hidden))
        return output

    def _norm(self, hidden: mx.array) -> mx.array:
        normed: mx.array = self._body.embedding_norm(hidden)
        return normed


def _short_convolution(layer: Any, hidden: mx.array, cache: ConvolutionCache) -> mx.array:
    """Return the output [1, n, D] of mlx-lm's `ShortConv`; append its gated rows to `cache`."""
    gate, out_gate, rows = mx.split(layer.in_proj(hidden), 3, axis=-1)
    mixed: mx.array = layer.out_proj(out_gate * layer.conv(cache.append(gate * rows)))
    return mixed
