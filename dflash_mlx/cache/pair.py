"""One memory for both models of a pair.

Invariant: the target's layers hold one row for every committed token except the anchor; the
draft's context holds rows of committed tokens only. There is one length, one byte budget, and
rows move through three verbs: append, commit, rollback.
"""

from collections.abc import Sequence

import mlx.core as mx

from dflash_mlx.cache.base import LayerCache, Snapshot
from dflash_mlx.cache.context import ContextCache
from dflash_mlx.cache.places import Snapshots
from dflash_mlx.errors import OutOfMemoryBudget


class PairCache:
    """The rows that target and draft keep of one conversation."""

    def __init__(
        self,
        layers: Sequence[LayerCache],
        context: ContextCache | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.layers = list(layers)
        self.context = context
        self.max_bytes = max_bytes
        self.length = 0
        self._open = 0
        self._places: Snapshots[list[Snapshot]] = Snapshots()

    def append(self, n_rows: int) -> None:
        """Open a round of `n_rows` rows, which the target's layers then write.

        Raises:
            OutOfMemoryBudget: the rows held already exceed `max_bytes`.
        """
        assert self._open == 0, f"{self._open} rows are open; commit or roll back first"
        if self.max_bytes is not None and self.nbytes > self.max_bytes:
            self._shrink(self.max_bytes)
        self._open = n_rows

    def commit(self, n_rows: int) -> None:
        """Keep the first `n_rows` rows of the open round and drop the others."""
        assert 0 <= n_rows <= self._open, (n_rows, self._open)
        for layer in self.layers:
            layer.commit(n_rows)
        self.length += n_rows
        self._open = 0

    def rollback(self) -> None:
        """Drop the open round, if there is one."""
        if self._open:
            for layer in self.layers:
                layer.rollback()
            self._open = 0

    def snapshot(self, n_rows: int) -> None:
        """Keep what `trim_to` needs to come back behind the first `n_rows` open rows."""
        assert 0 <= n_rows <= self._open, (n_rows, self._open)
        self._places.add(self.length + n_rows, [layer.snapshot(n_rows) for layer in self.layers])

    def trim_to(self, length: int) -> int:
        """Go back to at most `length` committed rows; return how many are left.

        Where a layer cannot go back so far exactly (a wrapped window, a recurrent state), all go
        back to the nearest remembered place before it, or to nothing.
        """
        left = min(length, self.length)
        nearest = self._places.back_to(left)
        if not all(layer.can_trim_to(left) for layer in self.layers):
            left = self._go_back(nearest)
        else:
            for layer in self.layers:
                layer.trim_to(left)
        self.length = left
        if self.context is not None:
            self.context.trim_to(left)
        return left

    def _go_back(self, nearest: tuple[int, list[Snapshot]] | None) -> int:
        """Bring all layers to the `nearest` place, or to nothing; return the rows left."""
        if nearest is None:
            for layer in self.layers:
                layer.trim_to(0)
            return 0
        left, layers = nearest
        for place in layers:
            place.restore()
        return left

    def _shrink(self, max_bytes: int) -> None:
        """Give up what only spares a later turn some acceptance.

        Raises:
            OutOfMemoryBudget: the rows exceed `max_bytes` all the same.
        """
        if self.context is not None:
            self.context.forget()
        if self.nbytes > max_bytes:
            raise OutOfMemoryBudget(
                f"{self.length} rows of context take {self.nbytes} bytes, the budget is "
                f"{max_bytes}; shorten the conversation or raise the budget"
            )

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows of both models, to be evaluated."""
        arrays = [array for layer in self.layers for array in layer.arrays]
        arrays += [a for layers in self._places for place in layers for a in place.arrays]
        return arrays + (self.context.arrays if self.context is not None else [])

    @property
    def nbytes(self) -> int:
        """Bytes held for both models, spare room included."""
        return sum(array.nbytes for array in self.arrays)
