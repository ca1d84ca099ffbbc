"""A queue with an end, from one producer thread to its readers.

It has no bound: a producer on the worker thread must never wait for a slow reader.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class ClosableQueue(Iterator[T]):
    """Values, then an end or an error. The error is raised after the values before it."""

    def __init__(self) -> None:
        self._values: deque[T] = deque()
        self._last: T | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._on_change: Callable[[], None] | None = None

    def put(self, value: T) -> None:
        """Add a value."""
        with self._changed:
            self._values.append(value)
            self._last = value
        self._notify()

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end; with `error`, the reader gets it raised there."""
        with self._changed:
            self._ended, self._error = True, error
        self._notify()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` now and after every change, then on the producer's thread."""
        self._on_change = on_change
        on_change()

    def ready(self) -> Iterator[T]:
        """Yield the values that are there, without waiting; unread ones stay in the queue."""
        while True:
            with self._changed:
                if not self._values:
                    return
                value = self._values.popleft()
            yield value

    @property
    def over(self) -> bool:
        """Whether all values were read and no more will come.

        Raises:
            BaseException: the error that ended the queue.
        """
        with self._changed:
            if self._values or not self._ended:
                return False
        if self._error is not None:
            raise self._error
        return True

    @property
    def last(self) -> T | None:
        """The value that was put last, read or not; None without one."""
        return self._last

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Wait for a value and return it. Several threads may read: each value goes to one."""
        with self._changed:
            self._changed.wait_for(lambda: self._values or self._ended)
            if self._values:
                return self._values.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if self._on_change is not None:
            self._on_change()
