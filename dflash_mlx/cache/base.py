"""The protocol of a target layer's cache, and snapshots to return to.

This module must not know tensors' meaning, models or tokens.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import mlx.core as mx

Mask = mx.array | str | None
"""An attention mask: booleans [n, rows] (true: visible), "causal", or None if all are visible."""


class Snapshot(NamedTuple):
    """One layer's cache at a length of `length` rows, independent of the cache it was taken from.

    `arrays` are never written to. A growing cache needs none: its own rows are its past.
    """

    length: int
    arrays: tuple[mx.array, ...] = ()
    parts: "tuple[Snapshot, ...]" = ()
    """The snapshots of a `CacheList`'s parts."""


class LayerCache(Protocol):
    """Rows of one target layer. Letters: H key/value heads, n rows, D head size.

    A round appends rows, then commits the first n of them or rolls all of them back. Appended
    rows that are not committed yet are *open*. The layer's forward pass sees committed and open
    rows.

    mlx-lm's layers read `offset` and call `update_and_fetch`. Layers of other kinds append
    through other methods of their cache class.
    """

    @property
    def offset(self) -> int:
        """Number of committed and open rows, which is the position of the next row."""

    @property
    def kind(self) -> Hashable:
        """Caches of equal kind hold the same positions and can share one mask."""

    @property
    def keeps_all_rows(self) -> bool:
        """Whether every committed row stays, so that `can_trim_to` holds for every length."""

    def mask(self, n_rows: int) -> Mask:
        """Return the attention mask for the next `n_rows` rows, before they are appended."""

    def commit(self, n_rows: int) -> None:
        """Commit the first `n_rows` open rows and drop the others."""

    def rollback(self) -> None:
        """Drop all open rows."""

    def can_trim_to(self, length: int) -> bool:
        """Return whether `trim_to(length)` is possible."""

    def trim_to(self, length: int) -> None:
        """Drop all rows after the first `length`, for which `can_trim_to` holds; it does for 0."""

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return a snapshot after the committed rows and the first `n_rows` open rows."""

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot of this cache, or of the cache that it was forked from."""

    def fork(self, length: int, snapshot: Snapshot | None = None) -> Self:
        """Return a cache with the first `length` committed rows that shares no buffer with this.

        `snapshot` is one of `length` rows, which is needed unless `can_trim_to(length)`.
        """

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated, unused room included."""

    @property
    def row_bytes(self) -> int:
        """Bytes that one more row adds permanently."""


SnapshotT = TypeVar("SnapshotT")

MAX_SNAPSHOTS = 4
"""Snapshots stored: the shortest one, which the head of the prompt (system message and tools)
shares with other conversations; this turn's; and the two before, in case a turn is retried or
edited."""


class SnapshotList(Generic[SnapshotT]):
    """The shortest and the latest snapshots of a conversation, ordered by their length in rows."""

    def __init__(self) -> None:
        self._snapshots: list[tuple[int, SnapshotT]] = []  # ascending length

    def __iter__(self) -> Iterator[SnapshotT]:
        return (snapshot for _, snapshot in self._snapshots)

    def add(self, length: int, snapshot: SnapshotT) -> None:
        """Store a snapshot of `length` rows; drop those of equal or greater length."""
        self._snapshots = [*self._up_to(length - 1), (length, snapshot)]
        if len(self._snapshots) > MAX_SNAPSHOTS:
            del self._snapshots[1]

    def trim_to(self, length: int) -> tuple[int, SnapshotT] | None:
        """Drop the snapshots of more than `length` rows; return the longest one left, if any."""
        self._snapshots = self._up_to(length)
        return self._snapshots[-1] if self._snapshots else None

    def latest(self, length: int) -> tuple[int, SnapshotT] | None:
        """Return the longest snapshot of at most `length` rows, if any."""
        return max(self._up_to(length), key=lambda entry: entry[0], default=None)

    def fork(self, length: int) -> "SnapshotList[SnapshotT]":
        """Return a list with the snapshots of at most `length` rows."""
        copy: SnapshotList[SnapshotT] = SnapshotList()
        copy._snapshots = self._up_to(length)
        return copy

    def clear(self) -> None:
        """Drop all snapshots."""
        self._snapshots = []

    def _up_to(self, length: int) -> list[tuple[int, SnapshotT]]:
        return [entry for entry in self._snapshots if entry[0] <= length]
