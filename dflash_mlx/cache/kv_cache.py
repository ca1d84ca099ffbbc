"""A growing KV cache. Committing and rolling back change its length only.

The memory layout is that of mlx-lm's KVCache (room in steps of 256 rows, attention receives a
view of the filled part), so attention sees the same strides and rounds the same way.
"""

from collections.abc import Hashable
from typing import Self

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from dflash_mlx.cache.base import Mask, Snapshot

STEP = 256
"""Rows by which growing caches grow; mlx-lm's step, on which the strides depend."""


class KVCache:
    """Keys and values [1, H, rows, D] of all rows."""

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0
        self._length = 0

    @property
    def kind(self) -> Hashable:
        """All growing caches of a model have one kind."""
        return "full"

    def mask(self, n_rows: int) -> Mask:
        """Return the causal mask; a single row needs none."""
        return "causal" if n_rows > 1 else None

    @property
    def keeps_all_rows(self) -> bool:
        """True: rows are dropped by `trim_to` only."""
        return True

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append open rows [1, H, n, D]; return the keys and values of all rows."""
        start, end = self.offset, self.offset + keys.shape[2]
        self.keys = _with_room(self.keys, keys, start, end)
        self.values = _with_room(self.values, values, start, end)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self.offset = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def commit(self, n_rows: int) -> None:
        """Commit the first `n_rows` open rows and drop the others."""
        assert self._length + n_rows <= self.offset, (self._length, n_rows, self.offset)
        self._length += n_rows
        self.offset = self._length

    def rollback(self) -> None:
        """Drop all open rows."""
        self.offset = self._length

    def can_trim_to(self, length: int) -> bool:
        """Return whether at least `length` rows are committed."""
        return length <= self._length

    def trim_to(self, length: int) -> None:
        """Drop all rows after the first `length`."""
        assert self.can_trim_to(length), (length, self._length)
        self._length = self.offset = length

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return a snapshot after the committed rows and the first `n_rows` open rows."""
        return Snapshot(self._length + n_rows)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot; the rows are still in the buffer."""
        self.trim_to(snapshot.length)

    def fork(self, length: int, snapshot: Snapshot | None = None) -> Self:
        """Return a cache with a copy of the first `length` committed rows."""
        assert self.can_trim_to(length), (length, self._length)
        fork = type(self)()
        if self.keys is not None and self.values is not None and length:
            room = -(-length // STEP) * STEP
            fork.keys = _copied(self.keys, length, room)
            fork.values = _copied(self.values, length, room)
        fork._length = fork.offset = length
        return fork

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in (self.keys, self.values) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, unused room included."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's keys and values; 0 before the first append."""
        return sum(array.nbytes // array.shape[2] for array in self.arrays)


class LatentCache(KVCache):
    """Compressed keys/values and rotary keys of multi-head latent attention.

    This attention adds its mask to the rotary scores, so it needs the mask as an array.
    """

    def mask(self, n_rows: int) -> Mask:
        """Return the causal mask as an array; a single row needs none."""
        return create_causal_mask(n_rows, self.offset) if n_rows > 1 else None


def _with_room(buffer: mx.array | None, rows: mx.array, start: int, end: int) -> mx.array:
    """Return `buffer` with room for `end` rows; its first `start` rows are copied."""
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    _, heads, n_rows, dim = rows.shape
    room = mx.zeros((1, heads, -(-n_rows // STEP) * STEP, dim), rows.dtype)
    if buffer is None:
        return room
    return mx.concatenate([buffer[..., :start, :], room], axis=2)


def _copied(buffer: mx.array, length: int, room: int) -> mx.array:
    """Return a new buffer of `room` rows that starts with the first `length` rows of `buffer`."""
    _, heads, _, dim = buffer.shape
    spare = mx.zeros((1, heads, room - length, dim), buffer.dtype)
    return mx.concatenate([buffer[..., :length, :], spare], axis=2)
