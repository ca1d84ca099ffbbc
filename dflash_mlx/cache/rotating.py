"""The KV cache of a sliding-window layer, stored in order of position.

Rows are only appended. When the buffer is full, the rows still visible move to a new buffer, so a
round can be rolled back at any point. mlx-lm's ring buffer cannot restore overwritten rows.
"""

from collections.abc import Hashable
from typing import Self

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from dflash_mlx.cache.base import Mask, Snapshot

_ROOM = 256
"""Rows appended between two moves to a new buffer. A move copies W rows, so for windows of up to
4,096 rows an appended row copies at most 16 others; room for one block is always there."""


class RotatingKVCache:
    """Keys and values [1, H, rows, D] of a window of W = `window` rows.

    A query at position p sees the keys at positions > p - W.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.offset = 0
        self._length = 0
        self._first = 0  # position of the buffer's first row
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    @property
    def kind(self) -> Hashable:
        """Caches of one window size have one kind."""
        return type(self), self.window

    def mask(self, n_rows: int) -> Mask:
        """Return the mask over the rows that `update_and_fetch` will return."""
        if n_rows == 1:
            return None
        before = min(self.offset, self.window - 1)
        if before + n_rows <= self.window:
            return "causal"
        mask: mx.array = create_causal_mask(n_rows, before, window_size=self.window)
        return mask

    @property
    def keeps_all_rows(self) -> bool:
        """False: rows that have left the window are dropped."""
        return False

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append open rows [1, H, n, D]; return the W - 1 rows before them and these rows."""
        n_rows = keys.shape[2]
        if self._keys is None or self._values is None:
            self._keys, self._values = _room(keys), _room(values)
        elif self.offset + n_rows - self._first > self._keys.shape[2]:
            self._move(keys, values)
        start = self.offset - self._first
        end = start + n_rows
        self._keys[..., start:end, :] = keys
        self._values[..., start:end, :] = values
        seen = max(0, start - self.window + 1)
        self.offset += n_rows
        return self._keys[..., seen:end, :], self._values[..., seen:end, :]

    def commit(self, n_rows: int) -> None:
        """Commit the first `n_rows` open rows and drop the others."""
        assert self._length + n_rows <= self.offset, (self._length, n_rows, self.offset)
        self._length += n_rows
        self.offset = self._length

    def rollback(self) -> None:
        """Drop all open rows."""
        self.offset = self._length

    def can_trim_to(self, length: int) -> bool:
        """Return whether all rows that are visible after `length` rows are still stored."""
        seen = max(0, length - self.window + 1)
        return length == 0 or (self._first <= seen and length <= self._length)

    def trim_to(self, length: int) -> None:
        """Drop all rows after the first `length`."""
        assert self.can_trim_to(length), (length, self._first, self._length)
        self._length = self.offset = length
        if length < self._first:
            self._first, self._keys, self._values = 0, None, None

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return a snapshot after the committed rows and the first `n_rows` open rows."""
        return self._snapshot_at(self._length + n_rows)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot."""
        self._length = self.offset = snapshot.length
        # a full buffer: the next append moves the rows and does not write into the snapshot
        self._keys, self._values = snapshot.arrays or (None, None)
        n_rows = 0 if self._keys is None else self._keys.shape[2]
        self._first = snapshot.length - n_rows

    def fork(self, length: int, snapshot: Snapshot | None = None) -> Self:
        """Return a cache with a copy of the rows that a row after `length` rows can see."""
        fork = type(self)(self.window)
        fork.restore(self._snapshot_at(length) if snapshot is None else snapshot)
        return fork

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in (self._keys, self._values) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, unused room included."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def row_bytes(self) -> int:
        """0: the window has a fixed size."""
        return 0

    def _move(self, keys: mx.array, values: mx.array) -> None:
        """Move the rows that committed and open rows can see to a buffer with room for `keys`."""
        assert self._keys is not None and self._values is not None
        first = max(self._first, self._length - self.window + 1)
        visible = slice(first - self._first, self.offset - self._first)
        self._keys = mx.concatenate([self._keys[..., visible, :], _room(keys)], axis=2)
        self._values = mx.concatenate([self._values[..., visible, :], _room(values)], axis=2)
        self._first = first

    def _snapshot_at(self, length: int) -> Snapshot:
        """Return a snapshot of `length` rows, all of which this cache still holds."""
        if self._keys is None or self._values is None:
            return Snapshot(0)
        first = max(self._first, length - self.window + 1)
        rows = slice(first - self._first, length - self._first)
        # copies: a slice would hold the whole buffer, and buffers are written in place
        keys = mx.contiguous(self._keys[..., rows, :])
        return Snapshot(length, (keys, mx.contiguous(self._values[..., rows, :])))


def _room(rows: mx.array) -> mx.array:
    """Return empty rows for `rows` [1, H, n, D] and `_ROOM` more."""
    _, heads, n_rows, dim = rows.shape
    return mx.zeros((1, heads, n_rows + _ROOM, dim), rows.dtype)
