"""Attention in float64, and inputs as the caches hand them over."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tests.metal.exactness import Exact, drawn, exact


def queries(seed: int, heads: int, rows: int, size: int, dtype: mx.Dtype) -> mx.array:
    """[1, heads, rows, size], a transposed view as projections leave it."""
    return drawn(seed, (1, rows, heads, size), dtype, outliers=False).transpose(0, 2, 1, 3)


def cached(seed: int, heads: int, rows: int, size: int, dtype: mx.Dtype) -> mx.array:
    """[1, heads, rows, size], a view of a cache with room behind the rows that holds NaN."""
    room = mx.full((1, heads, 13, size), float("nan"), dtype)
    kept = drawn(seed, (1, heads, rows, size), dtype, outliers=False)
    return mx.concatenate([kept, room], axis=2)[:, :, :rows]


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, seen: np.ndarray
) -> tuple[Exact, Exact]:
    """Attention [1, H, M, D] in float64, and the weighted sum of |v|; `seen` is [M, L]."""
    _, heads, rows, size = q.shape
    groups = k.shape[1]
    # One product per KV head: its query heads' rows stand below each other.
    grouped = exact(q).reshape(groups, -1, size)
    scores = grouped @ exact(k)[0].swapaxes(-1, -2) * scale
    scores = np.where(np.tile(seen, (heads // groups, 1)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    values = exact(v)[0]
    shape = (1, heads, rows, size)
    return (weights @ values).reshape(shape), (weights @ np.abs(values)).reshape(shape)
