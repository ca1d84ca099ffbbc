"""The draft's context cache: keys and values of context rows only.

Block rows are written behind the context for one forward pass and never counted, so the draft
has nothing to roll back and is never ahead of committed text. A sliding layer keeps the last
W - 1 context rows, which is all that any later block row can see; and of a place that a
conversation will come back to, those that it will see there.
"""

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from dflash_mlx.cache.full import STEP
from dflash_mlx.cache.places import Snapshots


class ContextRows(NamedTuple):
    """Rows [1, H, n, D] of a layer with their positions [n]."""

    positions: np.ndarray
    keys: mx.array
    values: mx.array


class ContextLayer:
    """Context rows of one draft layer, in order of position, with room for a block behind.

    `limit` is the number of rows worth keeping (W - 1), or None to keep all. Positions need not
    be consecutive: rows that were never projected leave a gap.
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
        """Return context rows followed by the block's rows [1, H, B, D], block not kept."""
        self._write(keys, values)  # first: it may drop rows that no query can see
        end = len(self.positions) + keys.shape[2]
        assert self._keys is not None and self._values is not None
        return self._keys[..., :end, :], self._values[..., :end, :]

    def unbroken(self, start: int) -> tuple[mx.array, mx.array] | None:
        """Return the context rows [1, H, n, D] if they stand gapless before `start`."""
        n_rows = len(self.positions)
        if self._keys is None or self._values is None or n_rows == 0:
            return None
        if (self.positions[0], self.positions[-1]) != (start - n_rows, start - 1):
            return None
        return self._keys[..., :n_rows, :], self._values[..., :n_rows, :]

    def trim_to(self, length: int) -> None:
        """Forget the rows at positions >= `length`."""
        self.positions = self.positions[: int(np.searchsorted(self.positions, length))]

    def snapshot(self) -> ContextRows | None:
        """Return a copy of the rows seen from here; None where no row is ever left behind."""
        if self.limit is None or self._keys is None or self._values is None:
            return None
        rows = slice(max(0, len(self.positions) - self.limit), len(self.positions))
        # copies: buffers are written in place
        keys = mx.contiguous(self._keys[..., rows, :])
        return ContextRows(self.positions[rows], keys, mx.contiguous(self._values[..., rows, :]))

    def recover(self, rows: ContextRows, length: int) -> None:
        """Put those of `rows` that were left behind, and are seen at `length`, back in front."""
        assert self.limit is not None and self._keys is not None and self._values is not None
        kept = len(self.positions)
        first = int(np.searchsorted(rows.positions, length - self.limit))
        last = int(np.searchsorted(rows.positions, self.positions[0] if kept else length))
        if first >= last:
            return
        # full to the last row, so the next rows go to a buffer of their own
        front = (rows.keys[..., first:last, :], rows.values[..., first:last, :])
        self._keys = mx.concatenate([front[0], self._keys[..., :kept, :]], axis=2)
        self._values = mx.concatenate([front[1], self._values[..., :kept, :]], axis=2)
        self.positions = np.concatenate([rows.positions[first:last], self.positions])

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""
        return [array for array in (self._keys, self._values) if array is not None]

    def _write(self, keys: mx.array, values: mx.array) -> None:
        """Put rows behind the counted ones, making room or dropping what no row can see."""
        kept, n_rows = len(self.positions), keys.shape[2]
        if self._keys is None or self._values is None or kept + n_rows > self._keys.shape[2]:
            drop = 0 if self.limit is None else max(0, kept - self.limit)
            self.positions = self.positions[drop:]
            self._keys = _moved(self._keys, keys, drop, kept)
            self._values = _moved(self._values, values, drop, kept)
            kept -= drop
        self._keys[..., kept : kept + n_rows, :] = keys
        self._values[..., kept : kept + n_rows, :] = values


def _moved(buffer: mx.array | None, rows: mx.array, start: int, end: int) -> mx.array:
    """Return a buffer with rows start..end of `buffer` in front and room for `rows` and more."""
    _, heads, n_rows, dim = rows.shape
    room = mx.zeros((1, heads, (n_rows // STEP + 1) * STEP, dim), rows.dtype)
    if buffer is None:
        return room
    return mx.concatenate([buffer[..., start:end, :], room], axis=2)


class ContextCache:
    """Context rows of all draft layers; `length` is the position behind the last of them."""

    def __init__(self, limits: list[int | None]) -> None:
        self.layers = [ContextLayer(limit) for limit in limits]
        self.length = 0
        self._places: Snapshots[list[ContextRows | None]] = Snapshots()

    @property
    def limit(self) -> int | None:
        """The most rows any layer keeps; None where one keeps all."""
        limits = [layer.limit for layer in self.layers]
        if any(limit is None for limit in limits):
            return None
        return max((limit for limit in limits if limit is not None), default=0)

    @property
    def slides(self) -> bool:
        """Whether any layer leaves rows behind."""
        return any(layer.limit is not None for layer in self.layers)

    def snapshot(self) -> None:
        """Keep what `trim_to` needs to come back here with all rows that are seen here."""
        self._places.add(self.length, [layer.snapshot() for layer in self.layers])

    def forget(self) -> None:
        """Give up the remembered places."""
        self._places.forget()

    def trim_to(self, length: int) -> None:
        """Forget the rows at positions >= `length`; a remembered place's come back."""
        for layer in self.layers:
            layer.trim_to(length)
        self.length = min(self.length, length)
        if place := self._places.back_to(length):
            for layer, rows in zip(self.layers, place[1], strict=True):
                if rows is not None:
                    layer.recover(rows, length)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""
        places = [rows for kept in self._places for rows in kept if rows is not None]
        remembered = [array for rows in places for array in (rows.keys, rows.values)]
        return [array for layer in self.layers for array in layer.arrays] + remembered

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return sum(array.nbytes for array in self.arrays)
