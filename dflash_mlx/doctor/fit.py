"""Whether a pair fits: the bytes it will take, computed without reading a weight.

The pair is assembled as for use and a prompt of the wanted length is walked through it, but
nothing is ever evaluated; MLX knows shape and type of every array all the same. So an estimate
cannot drift from what loading and the caches really do.
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
from dflash_mlx.system.memory import WORKING_SHARE

_SHORT = 8192
"""Rows at which caches are taken to grow evenly: most windows are shorter."""


@dataclass(frozen=True)
class Need:
    """Bytes that a pair takes with `n_rows` of context in both caches."""

    n_rows: int
    target_bytes: int
    draft_bytes: int
    target_cache_bytes: int
    draft_cache_bytes: int

    @property
    def held_bytes(self) -> int:
        """Weights and caches."""
        return (
            self.target_bytes + self.draft_bytes + self.target_cache_bytes + self.draft_cache_bytes
        )

    @property
    def peak_bytes(self) -> int:
        """What is held and room to work."""
        return round(self.held_bytes * (1 + WORKING_SHARE))


def outline(files: PairFiles, cache: CacheConfig | None = None) -> LoadedPair:
    """Return the pair in `files` with every shape and no values; its arrays are not to be read.

    Raises:
        BadCheckpoint, UnsupportedModel, PairMismatch: it could not be loaded.
    """
    compute = replace(compute_here(), outline=True)
    return assemble(files, compute, cache or CacheConfig(), LoadHooks())


def need(pair: Pair, n_rows: int, prefill_step_size: int = CacheConfig().prefill_step_size) -> Need:
    """Return what `pair` takes with `n_rows` of context; it may be an outline or loaded."""
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
    """Return about how many rows of context fit into `usable_bytes`, the pair's own at most.

    Caches grow evenly from some length on, where windows are full, so two lengths tell. 0 where
    not even the weights fit.
    """
    short, long = need(pair, _SHORT), need(pair, 2 * _SHORT)
    row_bytes = (long.held_bytes - short.held_bytes) / _SHORT
    room = usable_bytes / (1 + WORKING_SHARE) - short.held_bytes
    rows = _SHORT + int(room // row_bytes) if row_bytes else pair.target.shape.context_length
    return max(0, min(rows, pair.target.shape.context_length))


def _weights(model: object) -> int:
    assert isinstance(model, DecoderTarget | BoundDraft), type(model)
    return weight_bytes(model.model)
