"""Caches of causal convolutions and recurrent states, which cannot drop rows from their end.

A round therefore keeps the committed values and stores its own separately. Committing n rows cuts
the convolution's window from the round's inputs, and asks the layer for the state after n rows.
"""

from collections.abc import Callable, Hashable
from typing import Self

import mlx.core as mx

from dflash_mlx.cache.base import Mask, Snapshot

StateAfter = Callable[[int], mx.array]
"""`n -> the state after the first n open rows`, bit-identical to reading only those rows."""


class ConvolutionCache:
    """The last K - 1 input rows [1, K - 1, C] of a causal convolution over K rows."""

    def __init__(self, kernel_size: int) -> None:
        self.offset = 0
        self._kernel_size = kernel_size
        self._window: mx.array | None = None
        self._open: mx.array | None = None  # the window followed by the open rows

    @property
    def kind(self) -> Hashable:
        """All caches of this class have one kind, as none needs a mask."""
        return ConvolutionCache

    def mask(self, n_rows: int) -> Mask:
        """Return None: these layers need no mask."""
        return None

    @property
    def keeps_all_rows(self) -> bool:
        """False: a state has no rows of its past."""
        return False

    def append(self, rows: mx.array) -> mx.array:
        """Append open rows [1, n, C]; return the window followed by them, [1, K - 1 + n, C]."""
        assert self._open is None, "the last round is still open; commit or roll back first"
        window = self._window
        if window is None:
            window = mx.zeros((1, self._kernel_size - 1, rows.shape[2]), rows.dtype)
        self._open = mx.concatenate([window, rows], axis=1)
        self.offset += rows.shape[1]
        return self._open

    def commit(self, n_rows: int) -> None:
        """Commit the first `n_rows` open rows and drop the others."""
        self._window = self._window_after(n_rows)
        self.offset += n_rows - self._n_open
        self._open = None

    def rollback(self) -> None:
        """Drop all open rows."""
        self.offset -= self._n_open
        self._open = None

    def can_trim_to(self, length: int) -> bool:
        """Return whether `length` is the current number of committed rows, or 0."""
        return length in (0, self.offset - self._n_open)

    def trim_to(self, length: int) -> None:
        """Drop all rows if `length` is 0; otherwise keep all."""
        assert self.can_trim_to(length), (length, self.offset)
        if length == 0:
            self._window, self._open, self.offset = None, None, 0

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return a snapshot after the committed rows and the first `n_rows` open rows."""
        window = self._window_after(n_rows)
        length = self.offset - self._n_open + n_rows
        return Snapshot(length, () if window is None else (window,))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot."""
        self._window = snapshot.arrays[0] if snapshot.arrays else None
        self._open, self.offset = None, snapshot.length

    def fork(self, length: int, snapshot: Snapshot | None = None) -> Self:
        """Return a cache of `length` rows; states are never written to, so nothing is copied."""
        fork = type(self)(self._kernel_size)
        if length:
            fork.restore(self._committed() if snapshot is None else snapshot)
        return fork

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [array for array in (self._window, self._open) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def row_bytes(self) -> int:
        """0: the state has a fixed size."""
        return 0

    @property
    def _n_open(self) -> int:
        return 0 if self._open is None else self._open.shape[1] - self._kernel_size + 1

    def _committed(self) -> Snapshot:
        """Return a snapshot of the committed rows."""
        return Snapshot(self.offset - self._n_open, () if self._window is None else (self._window,))

    def _window_after(self, n_rows: int) -> mx.array | None:
        """Return the window after the first `n_rows` open rows."""
        assert 0 <= n_rows <= self._n_open, (n_rows, self._n_open)
        if self._open is None or n_rows == 0:
            return self._window
        # a copy: a slice would hold all rows of a prefill chunk in memory
        return mx.contiguous(self._open[:, n_rows : n_rows + self._kernel_size - 1])


class RecurrentCache(ConvolutionCache):
    """The state of a gated delta rule and the window of the convolution before it."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__(kernel_size)
        self.state: mx.array | None = None
        """The state after the committed rows; None before the first."""
        self._last: mx.array | None = None  # the state after all open rows
        self._state_after: StateAfter | None = None

    def set_open_state(self, last: mx.array, state_after: StateAfter) -> None:
        """Store the state after all open rows, and the function for fewer rows."""
        self._last, self._state_after = last, state_after

    def commit(self, n_rows: int) -> None:
        """Commit the first `n_rows` open rows and drop the others."""
        self.state = self._state_after_rows(n_rows)
        self._last, self._state_after = None, None
        super().commit(n_rows)

    def rollback(self) -> None:
        """Drop all open rows."""
        self._last, self._state_after = None, None
        super().rollback()

    def trim_to(self, length: int) -> None:
        """Drop all rows if `length` is 0; otherwise keep all."""
        super().trim_to(length)
        if length == 0:
            self.state, self._last, self._state_after = None, None, None

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return a snapshot after the committed rows and the first `n_rows` open rows."""
        convolution, state = super().snapshot(n_rows), self._state_after_rows(n_rows)
        states = () if state is None else (state,)
        return Snapshot(convolution.length, (*convolution.arrays, *states))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot."""
        super().restore(snapshot)
        self.state = snapshot.arrays[1] if snapshot.arrays else None
        self._last, self._state_after = None, None

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        states = [array for array in (self.state, self._last) if array is not None]
        return super().arrays + states

    def _committed(self) -> Snapshot:
        window = super()._committed()
        return window._replace(
            arrays=(*window.arrays, *(() if self.state is None else (self.state,)))
        )

    def _state_after_rows(self, n_rows: int) -> mx.array | None:
        """Return the state after the first `n_rows` open rows."""
        if n_rows == 0:
            return self.state
        assert self._state_after is not None, "rows were appended without their state"
        return self._last if n_rows == self._n_open else self._state_after(n_rows)
