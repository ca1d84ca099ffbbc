"""The walk over decoders that mix gated-delta layers with full attention."""

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx

from dflash_mlx.cache import KVCache, LayerCache, Mask, RecurrentCache
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.gated_delta import Projected, gated_delta


class HybridTarget(DecoderTarget):
    """A decoder whose `is_linear` layers keep a state; a family says how they project."""

    project: ClassVar[Callable[[Any, mx.array], Projected]]

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [
            RecurrentCache(layer.linear_attn.conv_kernel_size) if layer.is_linear else KVCache()
            for layer in self._body.layers
        ]

    def run_layer(self, layer: Any, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
        """Return a layer's output [1, n, D], its rows appended to `cache`."""
        if not layer.is_linear:
            return super().run_layer(layer, hidden, mask, cache)
        mixer = layer.linear_attn
        projected = type(self).project(mixer, layer.input_layernorm(hidden))
        hidden = hidden + gated_delta(mixer, projected, cache)
        output: mx.array = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return output
