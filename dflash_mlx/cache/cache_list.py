"""Several caches of one layer that commit and roll back together.

This module must not know the layers.
"""

from collections.abc import Hashable
from typing import Self

import mlx.core as mx

from dflash_mlx.cache.base import LayerCache, Mask, Snapshot


class CacheList:
    """The caches of a layer with several attentions, accessed by index as in mlx-lm."""

    def __init__(self, *parts: LayerCache) -> None:
        self._parts = parts

    def __getitem__(self, index: int) -> LayerCache:
        return self._parts[index]

    @property
    def offset(self) -> int:
        """Number of committed and open rows."""
        return self._parts[0].offset

    @property
    def kind(self) -> Hashable:
        """The kind of the first part."""
        return self._parts[0].kind

    def mask(self, n_rows: int) -> Mask:
        """Return the mask of the first part."""
        return self._parts[0].mask(n_rows)

    @property
    def keeps_all_rows(self) -> bool:
        """Whether every part keeps all rows."""
        return all(part.keeps_all_rows for part in self._parts)

    def commit(self, n_rows: int) -> None:
        """Commit the first `n_rows` open rows and drop the others."""
        for part in self._parts:
            part.commit(n_rows)

    def rollback(self) -> None:
        """Drop all open rows."""
        for part in self._parts:
            part.rollback()

    def can_trim_to(self, length: int) -> bool:
        """Return whether every part can be trimmed to `length` rows."""
        return all(part.can_trim_to(length) for part in self._parts)

    def trim_to(self, length: int) -> None:
        """Drop all rows after the first `length`."""
        for part in self._parts:
            part.trim_to(length)

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return a snapshot after the committed rows and the first `n_rows` open rows."""
        parts = tuple(part.snapshot(n_rows) for part in self._parts)
        arrays = tuple(array for part in parts for array in part.arrays)
        return Snapshot(parts[0].length, arrays, parts)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot."""
        for part, part_snapshot in zip(self._parts, snapshot.parts, strict=True):
            part.restore(part_snapshot)

    def fork(self, length: int, snapshot: Snapshot | None = None) -> Self:
        """Return a cache list of `length` rows that shares no buffer with this one."""
        parts = snapshot.parts if snapshot else [None] * len(self._parts)
        forks = (part.fork(length, one) for part, one in zip(self._parts, parts, strict=True))
        return type(self)(*forks)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for part in self._parts for array in part.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, unused room included."""
        return sum(part.nbytes for part in self._parts)

    @property
    def row_bytes(self) -> int:
        """Bytes that one more row adds permanently."""
        return sum(part.row_bytes for part in self._parts)
