"""What layers keep that read a sequence from left to right: a convolution's last inputs, a state.

Neither can drop rows from its end. So a round leaves the committed values untouched (keeping
them costs a reference) and stands beside them; committing n of its rows reads the convolution's
window off its inputs and gets the state behind n rows from the round's *tape*, a function that
the layer's forward pass hands over.
"""

from collections.abc import Callable, Hashable

import mlx.core as mx

from dflash_mlx.cache.base import Mask, Snapshot

Tape = Callable[[int], mx.array]
"""`n -> the state behind the first n open rows`, bit for bit that of having read only those."""


class ConvolutionCache:
    """The last K - 1 input rows [1, K - 1, C] of a causal convolution over K rows."""

    def __init__(self, kernel_size: int) -> None:
        self.offset = 0
        self._kernel_size = kernel_size
        self._window: mx.array | None = None
        self._open: mx.array | None = None  # the window and the open rows behind it

    @property
    def kind(self) -> Hashable:
        """One kind: none needs a mask."""
        return ConvolutionCache

    def mask(self, n_rows: int) -> Mask:
        """Return None: such layers see what they see by reading in order."""
        return None

    def append(self, rows: mx.array) -> mx.array:
        """Append open rows [1, n, C]; return them behind the window, [1, K - 1 + n, C]."""
        assert self._open is None, "the last round is still open"
        window = self._window
        if window is None:
            window = mx.zeros((1, self._kernel_size - 1, rows.shape[2]), rows.dtype)
        self._open = mx.concatenate([window, rows], axis=1)
        self.offset += rows.shape[1]
        return self._open

    def commit(self, n_rows: int) -> None:
        """Keep the first `n_rows` open rows and drop the others."""
        self._window = self._window_behind(n_rows)
        self.offset += n_rows - self._n_open
        self._open = None

    def rollback(self) -> None:
        """Drop all open rows."""
        self.offset -= self._n_open
        self._open = None

    def can_trim_to(self, length: int) -> bool:
        """Only where it stands, and the beginning."""
        return length in (0, self.offset - self._n_open)

    def trim_to(self, length: int) -> None:
        """Go back to `length` committed rows, which is nowhere or to the beginning."""
        assert self.can_trim_to(length), (length, self.offset)
        if length == 0:
            self._window, self._open, self.offset = None, None, 0

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return the place behind the committed rows and the first `n_rows` open ones."""
        window = self._window_behind(n_rows)
        length = self.offset - self._n_open + n_rows

        def restore() -> None:
            self._window, self._open, self.offset = window, None, length

        return Snapshot(restore, () if window is None else (window,))

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""
        return [array for array in (self._window, self._open) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def row_bytes(self) -> int:
        """A state does not grow."""
        return 0

    @property
    def _n_open(self) -> int:
        return 0 if self._open is None else self._open.shape[1] - self._kernel_size + 1

    def _window_behind(self, n_rows: int) -> mx.array | None:
        """Return the window behind the first `n_rows` open rows."""
        assert 0 <= n_rows <= self._n_open, (n_rows, self._n_open)
        if self._open is None or n_rows == 0:
            return self._window
        # a copy: a slice would keep every row of a long prompt's chunk
        return mx.contiguous(self._open[:, n_rows : n_rows + self._kernel_size - 1])


class RecurrentCache(ConvolutionCache):
    """The state of a gated delta rule, with the convolution before it."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__(kernel_size)
        self.state: mx.array | None = None
        """The committed state, None at the beginning."""
        self._after: mx.array | None = None
        self._tape: Tape | None = None

    def advance(self, after: mx.array, tape: Tape) -> None:
        """Take the state `after` all open rows, and the tape that gives those before it."""
        self._after, self._tape = after, tape

    def commit(self, n_rows: int) -> None:
        """Keep the first `n_rows` open rows and drop the others."""
        self.state = self._state_behind(n_rows)
        self._after, self._tape = None, None
        super().commit(n_rows)

    def rollback(self) -> None:
        """Drop all open rows."""
        self._after, self._tape = None, None
        super().rollback()

    def trim_to(self, length: int) -> None:
        """Go back to `length` committed rows, which is nowhere or to the beginning."""
        super().trim_to(length)
        if length == 0:
            self.state, self._after, self._tape = None, None, None

    def snapshot(self, n_rows: int) -> Snapshot:
        """Return the place behind the committed rows and the first `n_rows` open ones."""
        place, state = super().snapshot(n_rows), self._state_behind(n_rows)

        def restore() -> None:
            place.restore()
            self.state, self._after, self._tape = state, None, None

        return Snapshot(restore, (*place.arrays, *(() if state is None else (state,))))

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that hold the rows, to be evaluated."""
        states = [array for array in (self.state, self._after) if array is not None]
        return super().arrays + states

    def _state_behind(self, n_rows: int) -> mx.array | None:
        """Return the state behind the first `n_rows` open rows."""
        if n_rows == 0:
            return self.state
        assert self._tape is not None, "rows were appended without their state"
        return self._after if n_rows == self._n_open else self._tape(n_rows)
