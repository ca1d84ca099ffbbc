"""The token ids of a conversation. Extending them costs O(round), not O(context)."""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_TokenIds = NDArray[np.int32]


class History(Sequence[int]):
    """An immutable sequence of token ids that shares memory with its extensions.

    Extending a history for the first time appends to the shared buffer. Extending the same
    history a second time copies it. `np.asarray(history)` returns a view.
    """

    def __init__(self, ids: Iterable[int]) -> None:
        self._buffer = _Buffer(np.fromiter(ids, np.int32))
        self._length = self._buffer.used

    def extended(self, ids: Sequence[int]) -> "History":
        """Return a history of these tokens followed by `ids`."""
        longer = History.__new__(History)
        ends_buffer = self._buffer.used == self._length
        longer._buffer = self._buffer if ends_buffer else _Buffer(self._view().copy())
        longer._buffer.append(ids)
        longer._length = self._length + len(ids)
        return longer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...

    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        found: Any = self._view()[at].tolist()
        return tuple(found) if isinstance(at, slice) else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _TokenIds:
        return np.array(self._view(), dtype, copy=copy)

    def _view(self) -> _TokenIds:
        view = self._buffer.ids[: self._length]
        view.flags.writeable = False
        return view


class _Buffer:
    """Token ids shared by histories. It grows by half, so an append is O(1) amortised."""

    def __init__(self, ids: _TokenIds) -> None:
        self.ids = ids
        self.used = len(ids)

    def append(self, ids: Sequence[int]) -> None:
        end = self.used + len(ids)
        if end > len(self.ids):
            grown = np.empty(end + end // 2, np.int32)
            grown[: self.used] = self.ids[: self.used]
            self.ids = grown
        self.ids[self.used : end] = ids
        self.used = end
