"""The caches of both models of a pair, with one length and one byte budget.

The target's layers hold one row for every committed token except the anchor; the draft's context
holds rows of committed tokens only. This module must not know tokens or models.
"""

from collections.abc import Sequence

import mlx.core as mx

from dflash_mlx.cache.base import LayerCache, Snapshot, SnapshotList
from dflash_mlx.cache.context import ContextCache
from dflash_mlx.errors import OutOfMemoryBudget


class PairCache:
    """The cached rows of one conversation."""

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
        self._snapshots: SnapshotList[list[Snapshot]] = SnapshotList()

    def append(self, n_rows: int) -> None:
        """Open a round of `n_rows` rows; the target's layers write them afterwards.

        Raises:
            OutOfMemoryBudget: the caches already exceed `max_bytes`.
        """
        assert self._open == 0, f"{self._open} rows are open; commit or roll back first"
        if self.max_bytes is not None and self.nbytes > self.max_bytes:
            self._free_memory(self.max_bytes)
        self._open = n_rows

    def commit(self, n_rows: int) -> None:
        """Commit the first `n_rows` rows of the open round and drop the others."""
        assert 0 <= n_rows <= self._open, (n_rows, self._open)
        for layer in self.layers:
            layer.commit(n_rows)
        self.length += n_rows
        self._open = 0

    def rollback(self) -> None:
        """Drop the rows of the open round, if there is one."""
        if self._open:
            for layer in self.layers:
                layer.rollback()
            self._open = 0

    def snapshot(self, n_rows: int) -> None:
        """Store a snapshot after the first `n_rows` open rows, for `trim_to`."""
        assert 0 <= n_rows <= self._open, (n_rows, self._open)
        snapshots = [layer.snapshot(n_rows) for layer in self.layers]
        self._snapshots.add(self.length + n_rows, snapshots)

    def trim_to(self, length: int) -> int:
        """Drop the rows after the first `length`; return how many rows are left.

        If a layer cannot be trimmed to exactly this length (a sliding window, a recurrent state),
        all layers return to the longest earlier snapshot, or to 0 rows.
        """
        left = min(length, self.length)
        snapshot = self._snapshots.trim_to(left)
        if not all(layer.can_trim_to(left) for layer in self.layers):
            left = self._restore(snapshot)
        else:
            for layer in self.layers:
                layer.trim_to(left)
        self.length = left
        if self.context is not None:
            self.context.trim_to(left)
        return left

    @property
    def keeps_all_rows(self) -> bool:
        """Whether both models' rows stay, so that no snapshot is needed to return to a length."""
        slides = self.context is not None and self.context.has_sliding_layer
        return not slides and all(layer.keeps_all_rows for layer in self.layers)

    def reusable_length(self, length: int) -> int:
        """Return how many rows `trim_to(length)` or `fork(length)` would leave."""
        wanted = min(length, self.length)
        if all(layer.can_trim_to(wanted) for layer in self.layers):
            return wanted
        snapshot = self._snapshots.latest(wanted)
        return snapshot[0] if snapshot else 0

    def fork(self, length: int) -> "PairCache":
        """Return a cache with the first `reusable_length(length)` committed rows.

        It shares no buffer with this cache, which may have an open round and stays as it is. The
        copies are lazy: evaluate `arrays` of the fork before this cache is written to again.
        """
        length = self.reusable_length(length)
        found = self._snapshots.latest(length)
        snapshots: Sequence[Snapshot | None] = [None] * len(self.layers)
        if found is not None and found[0] == length:
            snapshots = found[1]
        layers = [
            layer.fork(length, snapshot)
            for layer, snapshot in zip(self.layers, snapshots, strict=True)
        ]
        context = None if self.context is None else self.context.fork(length)
        fork = PairCache(layers, context, self.max_bytes)
        fork.length = length
        fork._snapshots = self._snapshots.fork(length)
        return fork

    def _restore(self, snapshot: tuple[int, list[Snapshot]] | None) -> int:
        """Restore `snapshot` in all layers, or trim them to 0 rows; return the rows left."""
        if snapshot is None:
            for layer in self.layers:
                layer.trim_to(0)
            return 0
        length, layers = snapshot
        for layer, layer_snapshot in zip(self.layers, layers, strict=True):
            layer.restore(layer_snapshot)
        return length

    def _free_memory(self, max_bytes: int) -> None:
        """Drop the context's snapshots, which only raise the acceptance of a later turn.

        Raises:
            OutOfMemoryBudget: the caches still exceed `max_bytes`.
        """
        if self.context is not None:
            self.context.clear_snapshots()
        if self.nbytes > max_bytes:
            raise OutOfMemoryBudget(
                f"the KV cache of {self.length} tokens takes {self.nbytes} bytes and "
                f"CacheConfig.max_bytes is {max_bytes}; shorten the conversation or raise max_bytes"
            )

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of both models to evaluate."""
        arrays = [array for layer in self.layers for array in layer.arrays]
        arrays += [a for layers in self._snapshots for layer in layers for a in layer.arrays]
        return arrays + (self.context.arrays if self.context is not None else [])

    @property
    def nbytes(self) -> int:
        """Bytes allocated for both models, unused room included."""
        return sum(array.nbytes for array in self.arrays)
