"""Several caches of one layer that move as one."""

from collections.abc import Hashable

import mlx.core as mx

from dflash_mlx.cache.base import LayerCache, Mask, Snapshot


class CacheList:
    """The caches of a layer with several attentions, taken apart by index as mlx-lm does it."""

    def __init__(self, *parts: LayerCache) -> None:
        self._parts = parts

    def __getitem__(self, index: int) -> LayerCache:
        return self._parts[index]

    @property
    def offset(self) -> int:
        """Committed and open rows."""
        return self._parts[0].offset

    @property
    def kind(self) -> Hashable:
        """The kind of its first part."""
        return self._parts[0].kind

    def mask(self, n_rows: int) -> Mask:
        """Return the mask of its first part."""
        return self._parts[0].mask(n_rows)

    def commit(self, n_rows: int) -> None:
        """Keep the first `n_rows` open rows and drop the others."""
        for part in self._parts:
            part.commit(n_rows)

    def rollback(self) -> None:
        """Drop all open rows."""
        for part in self._parts:
            part.rollback()

    def can_trim_to(self, length: int) -> bool:
        """Whether every part holds `length` rows."""
        return all(part.can_trim_to(length) for part in self._parts)

    def trim_to(self, length: int) -> None:
        """Go back to `length` committed rows."""
        for part in self._parts:
            part.trim_to(length)

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return the place behind the committed rows and the first `n_rows` open ones."""
        places = [part.snapshot(n_rows) for part in self._parts]

        def restore() -> None:
            for place in places:
                place.restore()

        return Snapshot(restore, tuple(array for place in places for array in place.arrays))

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""
        return [array for part in self._parts for array in part.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return sum(part.nbytes for part in self._parts)

    @property
    def row_bytes(self) -> int:
        """Bytes by which one more row makes the parts grow."""
        return sum(part.row_bytes for part in self._parts)
