"""What the cache of one target layer promises.

A round appends rows, and then either commits the first n of them or drops them all. Rows that
are appended but not yet committed are *open*. A layer's forward pass sees committed and open
rows alike; nobody but the cache knows the difference.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

import mlx.core as mx

Mask = mx.array | str | None
"""What attention takes: booleans [n, rows] (true: visible), "causal", or None for all."""


class Snapshot(NamedTuple):
    """A place in the past that a cache can be brought back to."""

    restore: Callable[[], None]
    arrays: tuple[mx.array, ...] = ()
    """What is kept for it."""


class LayerCache(Protocol):
    """Rows of one target layer. Shapes use H key/value heads, n rows, D head size.

    `offset` (committed plus open rows) and `update_and_fetch` are the names under which
    mlx-lm's layers read a position and append rows; layers of other kinds append in their own
    way, through the methods of their cache class.
    """

    @property
    def offset(self) -> int:
        """Committed and open rows, which is the position of the next row."""

    @property
    def kind(self) -> Hashable:
        """Caches of one kind hold the same positions, so one mask serves them all."""

    def mask(self, n_rows: int) -> Mask:
        """Return the mask for `n_rows` rows that are about to be appended."""

    def commit(self, n_rows: int) -> None:
        """Keep the first `n_rows` open rows and drop the others."""

    def rollback(self) -> None:
        """Drop all open rows."""

    def can_trim_to(self, length: int) -> bool:
        """Whether `trim_to` can go back to exactly `length` committed rows."""

    def trim_to(self, length: int) -> None:
        """Go back to `length` committed rows, which are held. 0 always are."""

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return the place behind the committed rows and the first `n_rows` open ones."""

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""

    @property
    def row_bytes(self) -> int:
        """Bytes by which one more row makes the cache grow for good."""
