"""A growing key/value cache in which committing is a change of length.

The layout (spare room in steps of 256 rows, a view of the filled part handed out) is that of
mlx-lm's KVCache, so that attention sees the same strides and rounds the same way.
"""

import mlx.core as mx

_STEP = 256


class FullCache:
    """Keys and values of every row so far, [1, H, rows, D] each."""

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0
        self._length = 0

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

    def truncate(self, length: int) -> int:
        """Go back to at most `length` committed rows; return how many are left."""
        self._length = self.offset = min(self._length, length)
        return self._length

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""
        return [array for array in (self.keys, self.values) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return sum(array.nbytes for array in self.arrays)


def _with_room(buffer: mx.array | None, rows: mx.array, start: int, end: int) -> mx.array:
    """Return `buffer` with room for `end` rows, its first `start` rows kept."""
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    _, heads, n_rows, dim = rows.shape
    room = mx.zeros((1, heads, -(-n_rows // _STEP) * _STEP, dim), rows.dtype)
    if buffer is None:
        return room
    return mx.concatenate([buffer[..., :start, :], room], axis=2)
