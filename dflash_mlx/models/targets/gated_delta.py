"""The forward pass of a gated-delta layer that can be rolled back to a prefix of its rows.

mlx-lm's module returns only its output. After a partly accepted block the recurrence runs again
over the accepted rows from the state before the block, which needs their keys, values and gates.
The arithmetic is mlx-lm's, in the same order, so the state equals that of reading only them.

Letters: n rows, Hk key heads, Hv value heads, Dk and Dv their sizes, C = 2 Hk Dk + Hv Dv.
Source: mlx-lm 0.32.2, `qwen3_5.GatedDeltaNet` and `qwen3_next.Qwen3NextGatedDeltaNet`.
"""

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from dflash_mlx.cache import RecurrentCache


class Projected(NamedTuple):
    """The outputs of a layer's input projections; `a` and `b` as mlx-lm names them."""

    rows: mx.array
    """[1, n, C]: queries, keys and values side by side, before the convolution."""
    gate: mx.array
    """[1, n, Hv, Dv], of the output norm."""
    a: mx.array
    """[1, n, Hv], the decay before its nonlinearity."""
    b: mx.array
    """[1, n, Hv], the update strength before its nonlinearity."""


def project_separate(layer: Any, hidden: mx.array) -> Projected:
    """Project `hidden` [1, n, D] where each projection has its own weight (Qwen3.5)."""
    heads = (1, hidden.shape[1], layer.num_v_heads, layer.head_v_dim)
    return Projected(
        rows=layer.in_proj_qkv(hidden),
        gate=layer.in_proj_z(hidden).reshape(heads),
        a=layer.in_proj_a(hidden),
        b=layer.in_proj_b(hidden),
    )


def project_fused(layer: Any, hidden: mx.array) -> Projected:
    """Project `hidden` [1, n, D] where weights are interleaved by key head (Qwen3-Next)."""
    n_rows = hidden.shape[1]
    queries, keys, values, gate, b, a = layer.fix_query_key_value_ordering(
        layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden)
    )
    parts = [part.reshape(1, n_rows, -1) for part in (queries, keys, values)]
    return Projected(mx.concatenate(parts, axis=-1), gate, a, b)


def gated_delta(layer: Any, projected: Projected, cache: RecurrentCache) -> mx.array:
    """Return the layer's output [1, n, D] and append its rows to `cache`."""
    n_rows = projected.rows.shape[1]
    convolved = nn.silu(layer.conv1d(cache.append(projected.rows)))
    queries, keys, values = _heads(layer, convolved)
    queries, keys = normalize_qk(queries, keys, inv_scale=layer.head_k_dim**-0.5, eps=1e-6)
    a, b, before = projected.a, projected.b, cache.state

    def read(n: int, queries: mx.array) -> tuple[mx.array, mx.array]:
        """Return the outputs and the state after the first n rows."""
        output, state = gated_delta_update(
            queries[:, :n],
            keys[:, :n],
            values[:, :n],
            a[:, :n],
            b[:, :n],
            layer.A_log,
            layer.dt_bias,
            before,
            None,
            use_kernel=not layer.training,
        )
        return output, state

    output, after = read(n_rows, queries)
    # a replay needs only the state, which does not depend on the queries
    cache.set_open_state(after, lambda n: read(n, keys)[1])
    projected_out: mx.array = layer.out_proj(
        layer.norm(output, projected.gate).reshape(1, n_rows, -1)
    )
    return projected_out


def _heads(layer: Any, convolved: mx.array) -> list[mx.array]:
    """Split [1, n, C] into queries and keys [1, n, Hk, Dk] and values [1, n, Hv, Dv]."""
    shapes = (
        (layer.num_k_heads, layer.head_k_dim),
        (layer.num_k_heads, layer.head_k_dim),
        (layer.num_v_heads, layer.head_v_dim),
    )
    parts = mx.split(convolved, [layer.key_dim, 2 * layer.key_dim], axis=-1)
    n_rows = convolved.shape[1]
    return [part.reshape(1, n_rows, *shape) for part, shape in zip(parts, shapes, strict=True)]
