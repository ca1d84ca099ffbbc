"""The memory a pair needs, computed without reading weights.

The pair is assembled as for inference and run on a prompt of the requested length, but nothing is
evaluated: MLX knows shape and type of every array, so the estimate follows the real caches.
"""

from dataclasses import dataclass, replace

import mlx.core as mx

from dflash_mlx.config import CacheConfig
from dflash_mlx.decode.prefill import read_chunk
from dflash_mlx.engine.load import LoadHooks, PairFiles, assemble
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.loading.compute import compute_here, weight_bytes
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.system.machine import WORKING_SHARE

_SHORT = 8192
"""Tokens from which caches are taken to grow linearly: more than the sliding windows of Gemma 3
(1024), gpt-oss (128) and the DFlash 2 drafts (2048)."""


@dataclass(frozen=True)
class Need:
    """Bytes that a pair needs with `n_rows` tokens in both caches."""

    n_rows: int
    target_bytes: int
    draft_bytes: int
    target_cache_bytes: int
    draft_cache_bytes: int

    @property
    def held_bytes(self) -> int:
        """Bytes of weights and caches."""
        return (
            self.target_bytes + self.draft_bytes + self.target_cache_bytes + self.draft_cache_bytes
        )

    @property
    def peak_bytes(self) -> int:
        """Bytes of weights, caches and working memory."""
        return round(self.held_bytes * (1 + WORKING_SHARE))


def outline(files: PairFiles, cache: CacheConfig | None = None) -> LoadedPair:
    """Return the pair in `files` with lazy arrays: shapes and types, no values.

    Raises:
        BadCheckpoint, UnsupportedModel, PairMismatch: loading it would fail.
    """
    compute = replace(compute_here(), outline=True)
    return assemble(files, compute, cache or CacheConfig(), LoadHooks())


def need(pair: Pair, n_rows: int, prefill_step_size: int = CacheConfig().prefill_step_size) -> Need:
    """Return the bytes that `pair` needs with `n_rows` tokens; weights need not be loaded."""
    cache = pair.make_cache()
    for start in range(0, n_rows, prefill_step_size):
        read_chunk(pair, cache, mx.zeros((1, min(prefill_step_size, n_rows - start)), mx.int32))
    draft_cache = cache.context.nbytes if cache.context is not None else 0
    return Need(
        n_rows=n_rows,
        target_bytes=_weights(pair.target),
        draft_bytes=_weights(pair.draft) if pair.draft is not None else 0,
        target_cache_bytes=cache.nbytes - draft_cache,
        draft_cache_bytes=draft_cache,
    )


def longest(pair: Pair, usable_bytes: int) -> int:
    """Return the approximate context length that fits into `usable_bytes`.

    At most the target's own context length; 0 if the weights alone do not fit. Caches grow
    linearly once windows are full, so two lengths determine the rest.
    """
    short, long = need(pair, _SHORT), need(pair, 2 * _SHORT)
    row_bytes = (long.held_bytes - short.held_bytes) / _SHORT
    room = usable_bytes / (1 + WORKING_SHARE) - short.held_bytes
    rows = _SHORT + int(room // row_bytes) if row_bytes else pair.target.shape.context_length
    return max(0, min(rows, pair.target.shape.context_length))


def _weights(model: object) -> int:
    assert isinstance(model, DecoderTarget | BoundDraft), type(model)
    return weight_bytes(model.model)
