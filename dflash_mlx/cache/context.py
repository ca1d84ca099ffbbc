"""The draft's KV cache: keys and values of context features.

A block's rows are written after the context for one forward pass and not counted, so the draft
never needs a rollback. This module must not know tokens or the draft's layers.
"""

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from dflash_mlx.cache.base import SnapshotList
from dflash_mlx.cache.kv_cache import STEP


class ContextRows(NamedTuple):
    """Copied rows [1, H, n, D] of one layer and their positions [n]."""

    positions: np.ndarray
    keys: mx.array
    values: mx.array


class ContextLayer:
    """Context rows of one draft layer, in order of position, followed by room for a block.

    `limit` is the number of rows that a sliding layer stores (W - 1), None for a full layer.
    Positions can have gaps where rows were never projected.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.positions = np.zeros(0, np.int32)
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    def append(self, keys: mx.array, values: mx.array, position: int) -> None:
        """Add context rows [1, H, n, D], the first at absolute `position`."""
        n_rows = keys.shape[2]
        if self.limit is not None and n_rows > self.limit:
            skip = n_rows - self.limit
            keys, values = keys[..., skip:, :], values[..., skip:, :]
            position, n_rows = position + skip, self.limit
        self._write(keys, values)
        added = np.arange(position, position + n_rows, dtype=np.int32)
        self.positions = np.concatenate([self.positions, added])

    def with_block(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return the context rows followed by the block's rows [1, H, B, D].

        The block's rows are not stored.
        """
        self._write(keys, values)  # may drop rows, so it comes before `end` is computed
        end = len(self.positions) + keys.shape[2]
        assert self._keys is not None and self._values is not None
        return self._keys[..., :end, :], self._values[..., :end, :]

    def contiguous_before(self, start: int) -> tuple[mx.array, mx.array] | None:
        """Return the context rows [1, H, n, D] if they end at `start` - 1 and have no gaps."""
        n_rows = len(self.positions)
        if self._keys is None or self._values is None or n_rows == 0:
            return None
        if (self.positions[0], self.positions[-1]) != (start - n_rows, start - 1):
            return None
        return self._keys[..., :n_rows, :], self._values[..., :n_rows, :]

    def trim_to(self, length: int) -> None:
        """Drop the rows at positions >= `length`."""
        self.positions = self.positions[: int(np.searchsorted(self.positions, length))]

    def snapshot(self) -> ContextRows | None:
        """Return a copy of the rows visible now; None for a full layer, which drops no rows."""
        if self.limit is None or self._keys is None or self._values is None:
            return None
        rows = slice(max(0, len(self.positions) - self.limit), len(self.positions))
        # copies: buffers are written in place
        keys = mx.contiguous(self._keys[..., rows, :])
        return ContextRows(self.positions[rows], keys, mx.contiguous(self._values[..., rows, :]))

    def restore_rows(self, rows: ContextRows, length: int) -> None:
        """Prepend those of `rows` that were dropped and are visible at position `length`."""
        assert self.limit is not None
        n_rows = len(self.positions)
        first = int(np.searchsorted(rows.positions, length - self.limit))
        last = int(np.searchsorted(rows.positions, self.positions[0] if n_rows else length))
        if first >= last:
            return
        # a full buffer: the next append copies the rows and does not write into the snapshot
        keys, values = rows.keys[..., first:last, :], rows.values[..., first:last, :]
        if self._keys is not None and self._values is not None:
            keys = mx.concatenate([keys, self._keys[..., :n_rows, :]], axis=2)
            values = mx.concatenate([values, self._values[..., :n_rows, :]], axis=2)
        self._keys, self._values = keys, values
        self.positions = np.concatenate([rows.positions[first:last], self.positions])

    def fork(self, length: int) -> "ContextLayer":
        """Return a layer with a copy of the rows at positions < `length`."""
        fork = ContextLayer(self.limit)
        n_rows = int(np.searchsorted(self.positions, length))
        if self._keys is not None and self._values is not None and n_rows:
            # full buffers: the next append moves the rows to a buffer with room
            fork._keys = mx.contiguous(self._keys[..., :n_rows, :])
            fork._values = mx.contiguous(self._values[..., :n_rows, :])
            fork.positions = self.positions[:n_rows]
        return fork

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in (self._keys, self._values) if array is not None]

    def _write(self, keys: mx.array, values: mx.array) -> None:
        """Write rows after the counted ones; grow, or drop rows that no query can see, if full."""
        n_known, n_rows = len(self.positions), keys.shape[2]
        if self._keys is None or self._values is None or n_known + n_rows > self._keys.shape[2]:
            drop = 0 if self.limit is None else max(0, n_known - self.limit)
            self.positions = self.positions[drop:]
            self._keys = _moved(self._keys, keys, drop, n_known)
            self._values = _moved(self._values, values, drop, n_known)
            n_known -= drop
        self._keys[..., n_known : n_known + n_rows, :] = keys
        self._values[..., n_known : n_known + n_rows, :] = values


def _moved(buffer: mx.array | None, rows: mx.array, start: int, end: int) -> mx.array:
    """Return rows `start`..`end` of `buffer` followed by room for `rows` and up to STEP more."""
    _, heads, n_rows, dim = rows.shape
    room = mx.zeros((1, heads, (n_rows // STEP + 1) * STEP, dim), rows.dtype)
    if buffer is None:
        return room
    return mx.concatenate([buffer[..., start:end, :], room], axis=2)


class ContextCache:
    """Context rows of all draft layers; `length` is the position after the last row."""

    def __init__(self, limits: list[int | None]) -> None:
        self.layers = [ContextLayer(limit) for limit in limits]
        self.length = 0
        self._snapshots: SnapshotList[list[ContextRows | None]] = SnapshotList()

    @property
    def limit(self) -> int | None:
        """The largest number of rows that any layer stores; None if one stores all."""
        limits = [layer.limit for layer in self.layers]
        if any(limit is None for limit in limits):
            return None
        return max((limit for limit in limits if limit is not None), default=0)

    @property
    def has_sliding_layer(self) -> bool:
        """Whether any layer drops rows."""
        return any(layer.limit is not None for layer in self.layers)

    def snapshot(self) -> None:
        """Store the rows visible now, for `trim_to`."""
        self._snapshots.add(self.length, [layer.snapshot() for layer in self.layers])

    def clear_snapshots(self) -> None:
        """Drop all snapshots."""
        self._snapshots.clear()

    def trim_to(self, length: int) -> None:
        """Drop the rows at positions >= `length`; restore visible rows from the latest snapshot."""
        for layer in self.layers:
            layer.trim_to(length)
        self.length = min(self.length, length)
        if snapshot := self._snapshots.trim_to(length):
            for layer, rows in zip(self.layers, snapshot[1], strict=True):
                if rows is not None:
                    layer.restore_rows(rows, length)

    def fork(self, length: int) -> "ContextCache":
        """Return a cache with the rows at positions < `length` that shares no buffer with this."""
        fork = ContextCache([layer.limit for layer in self.layers])
        fork.layers = [layer.fork(length) for layer in self.layers]
        fork.length = min(self.length, length)
        fork._snapshots = self._snapshots.fork(length)
        fork.trim_to(length)  # restores visible rows from the latest snapshot
        return fork

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        copies = [rows for layers in self._snapshots for rows in layers if rows is not None]
        copied = [array for rows in copies for array in (rows.keys, rows.values)]
        return [array for layer in self.layers for array in layer.arrays] + copied

    @property
    def nbytes(self) -> int:
        """Bytes allocated, unused room included."""
        return sum(array.nbytes for array in self.arrays)
