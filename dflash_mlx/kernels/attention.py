"""Attention layers that launch a kernel for verified blocks over long contexts.

Each class adds one branch to its mlx-lm parent: the parent's projections and rotation, then the
kernel over the cache. Shapes: n rows, H query heads, d elements per head.
"""

from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen2, qwen3, qwen3_moe, qwen3_next

from dflash_mlx.cache import ContextLayer
from dflash_mlx.kernels.choices import TUNED_KEYS, AttentionChoices
from dflash_mlx.kernels.layers import norm_dtype, packed_weight, row_dtype
from dflash_mlx.kernels.rewrap import replace_layers, rewrap_layer
from dflash_mlx.kernels.tuning_tasks import AttentionGroup
from dflash_mlx.metal.attention_cases import HeadShape
from dflash_mlx.metal.attention_geometry import HEAD_SIZES, AttentionGeometry
from dflash_mlx.metal.block_attention import BlockKeys, BlockMask, launch_block
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.matrix_cases import weight_dtype, weight_shape
from dflash_mlx.metal.refusal import FLOATS
from dflash_mlx.metal.verify_attention import launch_verify
from dflash_mlx.models.draft.dflash import DraftAttention


class _Chosen:
    """The choices and the device of an attention; not one of the module's parameters.

    The choices hold for rows of `dtype` only: threadgroup memory depends on the type.
    """

    def __init__(self, choices: AttentionChoices, dtype: mx.Dtype, device: Device) -> None:
        self.device = device
        self._choices = choices
        self._dtype = dtype

    def geometry(self, dtype: mx.Dtype, n_rows: int, n_keys: int) -> AttentionGeometry | None:
        """Return the geometry for `n_rows` rows of `dtype` over `n_keys` keys, or None."""
        return self._choices.at(n_rows, n_keys) if dtype == self._dtype else None


class VerifyAttention(nn.Module):
    """Mixin for the attention of a target family; comes before the mlx-lm class."""

    _chosen: _Chosen

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """Return [1, n, D] for rows x [1, n, D] and append their keys and values to `cache`."""
        n_rows, chosen = x.shape[1], self._chosen
        geometry = None
        # mlx-lm passes the causal mask as a string; the kernel computes the causal mask only
        if isinstance(mask, str) and cache is not None and x.shape[0] == 1:
            geometry = chosen.geometry(x.dtype, n_rows, cache.offset + n_rows)
        if geometry is None:
            stock: mx.array = super().__call__(x, mask, cache)
            return stock
        queries, gate = self._queries(x)
        keys = self._heads(self.k_proj(x), "k_norm")
        values = self._heads(self.v_proj(x), None)
        queries = self.rope(queries, offset=cache.offset)
        keys, values = cache.update_and_fetch(self.rope(keys, offset=cache.offset), values)
        mixed = launch_verify(
            queries, keys, values, self.scale, device=chosen.device, geometry=geometry
        )
        mixed = mixed.transpose(0, 2, 1, 3).reshape(1, n_rows, -1)
        projected: mx.array = self.o_proj(mixed if gate is None else mixed * mx.sigmoid(gate))
        return projected

    def _queries(self, x: mx.array) -> tuple[mx.array, mx.array | None]:
        """Return queries [1, H, n, d] before rotation, and the output gate [1, n, H d] or None."""
        return self._heads(self.q_proj(x), "q_norm"), None

    def _heads(self, projected: mx.array, norm: str | None) -> mx.array:
        split = projected.reshape(1, projected.shape[1], -1, _head_size(self))
        if norm is not None and norm in self:
            split = self[norm](split)
        return split.transpose(0, 2, 1, 3)


class LlamaAttention(VerifyAttention, llama.Attention):
    """Llama's attention with the verify_attention kernel."""


class Qwen2Attention(VerifyAttention, qwen2.Attention):
    """Qwen2's attention with the verify_attention kernel."""


class Qwen3Attention(VerifyAttention, qwen3.Attention):
    """Qwen3's attention with the verify_attention kernel."""


class Qwen3MoeAttention(VerifyAttention, qwen3_moe.Attention):
    """The attention of Qwen3 mixture-of-experts models with the verify_attention kernel."""


class Qwen3NextAttention(VerifyAttention, qwen3_next.Qwen3NextAttention):
    """The gated attention of Qwen3-Next and Qwen3.5 with the verify_attention kernel."""

    def _queries(self, x: mx.array) -> tuple[mx.array, mx.array | None]:
        split = self.q_proj(x).reshape(1, x.shape[1], -1, 2 * _head_size(self))
        queries, gate = mx.split(split, 2, axis=-1)
        return self.q_norm(queries).transpose(0, 2, 1, 3), gate.reshape(1, x.shape[1], -1)


class KernelDraftAttention(DraftAttention):
    """A draft's attention with the block_attention kernel, without joining the arrays."""

    _chosen: _Chosen

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        start: int,
        context: ContextLayer,
    ) -> mx.array:
        """Return [1, H, B, d] for rotated queries, keys and values of block rows."""
        chosen = self._chosen
        geometry = chosen.geometry(queries.dtype, queries.shape[2], len(context.positions))
        rows = None if geometry is None else context.contiguous_before(start)
        if geometry is None or rows is None:
            return super().attend(queries, keys, values, start, context)
        return launch_block(
            queries,
            BlockKeys(*rows, keys, values),
            self.scale,
            BlockMask(self.window, self.causal),
            device=chosen.device,
            geometry=geometry,
        )


OURS: Final[dict[type[nn.Module], type[VerifyAttention] | type[KernelDraftAttention]]] = {
    llama.Attention: LlamaAttention,
    qwen2.Attention: Qwen2Attention,
    qwen3.Attention: Qwen3Attention,
    qwen3_moe.Attention: Qwen3MoeAttention,
    qwen3_next.Qwen3NextAttention: Qwen3NextAttention,
    DraftAttention: KernelDraftAttention,
}


def replace_attention(
    model: nn.Module, device: Device, keys: tuple[int, ...] = TUNED_KEYS
) -> tuple[AttentionGroup, ...]:
    """Replace the attention layers of `model` by kernel layers; return their groups of equal shape.

    Other classes, and shapes that the kernels do not support, stay as they are. `keys` are the
    numbers of keys at which a range of choices begins. The order relative to `replace_linears`
    does not matter.
    """
    groups: dict[str, AttentionGroup] = {}
    norms = norm_dtype(model)
    replaced: list[tuple[str, nn.Module]] = []
    for path, layer in model.named_modules():
        group = _group(layer, keys, norms)
        if group is None:
            continue
        group = groups.setdefault(f"{group.shape} {group.mask}", group)
        made: Any = rewrap_layer(layer, OURS[type(layer)])
        made._chosen = _Chosen(group.choices, group.shape.dtype, device)
        replaced.append((path, made))
    replace_layers(model, replaced)
    return tuple(groups.values())


def _group(layer: Any, keys: tuple[int, ...], norms: mx.Dtype | None) -> AttentionGroup | None:
    """Return the group of one attention layer, or None where no kernel supports it.

    `norms` is the widest type of the norms of the model.
    """
    if type(layer) not in OURS:
        return None
    size = _head_size(layer)
    (n_keys, dtype), (n_queries, _) = _side(layer.k_proj, 0), _side(layer.o_proj, 1)
    dtype = row_dtype(dtype, norms)
    shape = HeadShape(n_queries // size, n_keys // size, size, dtype)
    if size not in HEAD_SIZES or shape.heads % shape.groups or dtype not in FLOATS:
        return None
    mask = None
    if isinstance(layer, DraftAttention):
        if layer.sinks is not None:
            return None
        mask = BlockMask(layer.window, layer.causal)
        # a windowed context never exceeds its window
        keys = tuple(least for least in keys if mask.window is None or least < mask.window)
    return AttentionGroup(shape, mask, AttentionChoices(keys))


def _head_size(layer: Any) -> int:
    """Return the elements per head, from the scale: every mlx-lm attention stores that."""
    size: float = layer.scale**-2
    return round(size)


def _side(linear: Any, axis: int) -> tuple[int, mx.Dtype]:
    """Return the outputs (axis 0) or inputs (axis 1) of a linear layer, and its weight type."""
    weight = packed_weight(linear) if "scales" in linear else linear.weight
    return weight_shape(weight)[axis], weight_dtype(weight)
