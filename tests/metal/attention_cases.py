"""Attention in float64, and inputs with the strides of real caches."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tests.metal.exactness import Exact, drawn, exact


def queries(seed: int, heads: int, rows: int, size: int, dtype: mx.Dtype) -> mx.array:
    """Return [1, heads, rows, size], a transposed view like the output of a projection."""
    return drawn(seed, (1, rows, heads, size), dtype, outliers=False).transpose(0, 2, 1, 3)


def cached(seed: int, heads: int, rows: int, size: int, dtype: mx.Dtype) -> mx.array:
    """Return [1, heads, rows, size], a view of a cache whose unused rows hold NaN."""
    room = mx.full((1, heads, 13, size), float("nan"), dtype)
    rows_used = drawn(seed, (1, heads, rows, size), dtype, outliers=False)
    return mx.concatenate([rows_used, room], axis=2)[:, :, :rows]


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, visible: np.ndarray
) -> tuple[Exact, Exact]:
    """Return attention [1, H, M, D] in float64 and the weighted sum of |v|; `visible` is [M, L]."""
    _, heads, rows, size = q.shape
    groups = k.shape[1]
    # One product per KV head: the rows of its query heads are stacked.
    grouped = exact(q).reshape(groups, -1, size)
    scores = grouped @ exact(k)[0].swapaxes(-1, -2) * scale
    scores = np.where(np.tile(visible, (heads // groups, 1)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    values = exact(v)[0]
    shape = (1, heads, rows, size)
    return (weights @ values).reshape(shape), (weights @ np.abs(values)).reshape(shape)
