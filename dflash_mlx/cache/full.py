"""A growing key/value cache in which committing is a change of length.

The layout (spare room in steps of 256 rows, a view of the filled part handed out) is that of
mlx-lm's KVCache, so that attention sees the same strides and rounds the same way.
"""

from collections.abc import Hashable
from functools import partial

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from dflash_mlx.cache.base import Mask, Snapshot

STEP = 256
"""Rows by which growing caches grow."""


class KVCache:
    """Keys and values of every row so far, [1, H, rows, D] each."""

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0
        self._length = 0

    @property
    def kind(self) -> Hashable:
        """One kind for every growing cache of a walk."""
        return "full"

    def mask(self, n_rows: int) -> Mask:
        """Return the mask of rows that see everything before them."""
        return "causal" if n_rows > 1 else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append open rows [1, H, n, D]; return all keys and values up to the last of them."""
        start, end = self.offset, self.offset + keys.shape[2]
        self.keys = _with_room(self.keys, keys, start, end)
        self.values = _with_room(self.values, values, start, end)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self.offset = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def commit(self, n_rows: int) -> None:
        """Keep the first `n_rows` open rows and drop the others."""
        assert self._length + n_rows <= self.offset, (self._length, n_rows, self.offset)
        self._length += n_rows
        self.offset = self._length

    def rollback(self) -> None:
        """Drop all open rows."""
        self.offset = self._length

    def can_trim_to(self, length: int) -> bool:
        """Whether there are so many committed rows; every one is kept."""
        return length <= self._length

    def trim_to(self, length: int) -> None:
        """Go back to `length` committed rows."""
        assert self.can_trim_to(length), (length, self._length)
        self._length = self.offset = length

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return the place behind the committed rows and the first `n_rows` open ones."""
        return Snapshot(partial(self.trim_to, self._length + n_rows))

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""
        return [array for array in (self.keys, self.values) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's keys and values; 0 while nothing was appended."""
        return sum(array.nbytes // array.shape[2] for array in self.arrays)


class LatentCache(KVCache):
    """Compressed keys/values and rotated key parts of latent attention, one row a token.

    That attention adds its mask to the scores of the rotated parts, so it needs an array.
    """

    def mask(self, n_rows: int) -> Mask:
        """Return the mask of rows that see everything before them, as an array."""
        return create_causal_mask(n_rows, self.offset) if n_rows > 1 else None


def _with_room(buffer: mx.array | None, rows: mx.array, start: int, end: int) -> mx.array:
    """Return `buffer` with room for `end` rows, its first `start` rows kept."""
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    _, heads, n_rows, dim = rows.shape
    room = mx.zeros((1, heads, -(-n_rows // STEP) * STEP, dim), rows.dtype)
    if buffer is None:
        return room
    return mx.concatenate([buffer[..., :start, :], room], axis=2)
