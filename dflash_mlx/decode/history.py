"""The tokens of a conversation, to which every round appends: O(round), not O(context)."""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class History(Sequence[int]):
    """Token ids that can be extended and are never changed.

    What extends a history shares its memory, so an extension costs what it adds; a second
    extension of the same history copies. `np.asarray(history)` copies nothing.
    """

    def __init__(self, ids: Iterable[int]) -> None:
        self._buffer = _Buffer(np.fromiter(ids, np.int32))
        self._length = self._buffer.used

    def extended(self, ids: Sequence[int]) -> "History":
        """Return this history with `ids` behind it."""
        longer = History.__new__(History)
        same = self._buffer.used == self._length
        longer._buffer = self._buffer if same else _Buffer(self._view().copy())
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Ids:
        return np.array(self._view(), dtype, copy=copy)

    def _view(self) -> Ids:
        view = self._buffer.ids[: self._length]
        view.flags.writeable = False
        return view


class _Buffer:
    """Ids that histories share; it grows by half, so that appending costs what is appended."""

    def __init__(self, ids: Ids) -> None:
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
