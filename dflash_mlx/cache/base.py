"""What the cache of one target layer promises.

A round appends rows, and then either commits the first n of them or drops them all. Rows that
are appended but not yet committed are *open*. A layer's forward pass sees committed and open
rows alike; nobody but the cache knows the difference.
"""

from typing import Protocol

import mlx.core as mx


class LayerCache(Protocol):
    """Rows of one target layer. Shapes use H key/value heads, n rows, D head size.

    `offset` (committed plus open rows) and `update_and_fetch` are the names under which
    mlx-lm's layers read a position and append rows; layers of other kinds append in their own
    way, through the methods of their cache class.
    """

    offset: int

    def commit(self, n_rows: int) -> None:
        """Keep the first `n_rows` open rows and drop the others."""

    def rollback(self) -> None:
        """Drop all open rows."""

    def truncate(self, length: int) -> int:
        """Go back to at most `length` committed rows; return how many are left."""

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
