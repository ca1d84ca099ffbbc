"""Compares the rows of mlx-lm's caches with the rows of ours by absolute position."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx_lm_cache

from dflash_mlx.cache import (
    CacheList,
    ConvolutionCache,
    KVCache,
    LayerCache,
    RecurrentCache,
    RotatingKVCache,
)


class Rows(NamedTuple):
    """Arrays whose row axis starts at position `first`; a state has one row, the newest."""

    first: int
    arrays: list[np.ndarray]


def assert_same_rows(ours: Sequence[LayerCache], theirs: Sequence[Any], tolerance: float) -> None:
    """Compare caches at every position that both keep; a tolerance of 0 needs equal bits."""
    assert len(ours) == len(theirs)
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        for got, want in zip(_ours(our), _theirs(their), strict=True):
            _compare(got, want, tolerance, f"layer {index}")


def assert_equal_rows(
    ours: Sequence[LayerCache], others: Sequence[LayerCache], tolerance: float = 0
) -> None:
    """Compare two lists of our caches at every position that both hold; 0 asks for equal bits."""
    for index, (our, other) in enumerate(zip(ours, others, strict=True)):
        for got, want in zip(_ours(our), _ours(other), strict=True):
            _compare(got, want, tolerance, f"layer {index}")


def _compare(got: Rows, want: Rows, tolerance: float, where: str) -> None:
    first = max(got.first, want.first)
    for our, their in zip(got.arrays, want.arrays, strict=True):
        our, their = our[first - got.first :], their[first - want.first :]
        assert len(our) and our.shape == their.shape, (where, our.shape, their.shape)
        if tolerance:
            np.testing.assert_allclose(our, their, rtol=0, atol=tolerance, err_msg=where)
        else:
            np.testing.assert_array_equal(our, their, err_msg=where)


def _rows(buffer: mx.array, start: int, end: int) -> np.ndarray:
    """Return rows start..end of a buffer [1, H, rows, D], row axis first."""
    return np.array(buffer[0, :, start:end].astype(mx.float32)).swapaxes(0, 1)


def _ours(cache: Any) -> list[Rows]:
    if isinstance(cache, CacheList):
        return [rows for index in range(2) for rows in _ours(cache[index])]
    if isinstance(cache, RotatingKVCache):
        length = cache.offset - cache._first
        seen = max(0, length - cache.window)
        buffers = (cache._keys, cache._values)
        return [Rows(cache._first + seen, [_rows(b, seen, length) for b in buffers])]
    if isinstance(cache, KVCache):
        return [Rows(0, [_rows(b, 0, cache.offset) for b in (cache.keys, cache.values)])]
    if isinstance(cache, RecurrentCache):
        return [Rows(0, [np.array(cache._window), np.array(cache.state)])]
    assert isinstance(cache, ConvolutionCache)
    return [Rows(0, [np.array(cache._window)])]


def _theirs(cache: Any) -> list[Rows]:
    if isinstance(cache, mlx_lm_cache.CacheList):
        return [rows for part in cache.caches for rows in _theirs(part)]
    if isinstance(cache, mlx_lm_cache.RotatingKVCache):
        buffers = [cache._temporal_order(b) for b in (cache.keys, cache.values)]
        n_rows = buffers[0].shape[2]
        return [Rows(cache.offset - n_rows, [_rows(b, 0, n_rows) for b in buffers])]
    if isinstance(cache, mlx_lm_cache.KVCache):
        return [Rows(0, [_rows(b, 0, cache.offset) for b in (cache.keys, cache.values)])]
    assert isinstance(cache, mlx_lm_cache.ArraysCache)
    return [Rows(0, [np.array(array) for array in cache.cache])]
