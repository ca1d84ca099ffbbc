"""Targets that mix gated-delta layers with full attention: Qwen3-Next and Qwen3.5 to 3.8."""

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx

from dflash_mlx.cache import KVCache, LayerCache, Mask, RecurrentCache
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.gated_delta import (
    Projected,
    gated_delta,
    project_fused,
    project_separate,
)


class HybridTarget(DecoderTarget):
    """A decoder whose `is_linear` layers keep a recurrent state; subclasses set `project`."""

    project: ClassVar[Callable[[Any, mx.array], Projected]]

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [
            RecurrentCache(layer.linear_attn.conv_kernel_size) if layer.is_linear else KVCache()
            for layer in self._body.layers
        ]

    def run_layer(self, layer: Any, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
        """Return a layer's output [1, n, D] and append its rows to `cache`."""
        if not layer.is_linear:
            return super().run_layer(layer, hidden, mask, cache)
        mixer = layer.linear_attn
        projected = type(self).project(mixer, layer.input_layernorm(hidden))
        hidden = hidden + gated_delta(mixer, projected, cache)
        output: mx.array = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return output


class Qwen35Target(HybridTarget):
    """Qwen3.5, 3.6 and 3.8, dense and mixture of experts: separate projections."""

    project: ClassVar[Callable[[Any, mx.array], Projected]] = staticmethod(project_separate)


class Qwen3NextTarget(HybridTarget):
    """Qwen3-Next and Qwen3-Coder-Next: fused projections and routed experts."""

    project: ClassVar[Callable[[Any, mx.array], Projected]] = staticmethod(project_fused)
