"""Values from one thread to one consumer, without a bound: the producer never waits for it."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """A queue with an end. An error that ends it is raised behind the values before it."""

    def __init__(self) -> None:
        self._values: deque[T] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._watcher: Callable[[], None] | None = None

    def put(self, value: T) -> None:
        """Add a value."""
        with self._changed:
            self._values.append(value)
        self._tell()

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing follows, or that an error ended it."""
        with self._changed:
            self._ended, self._error = True, error
        self._tell()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher`, on the producer's thread, whenever there is something new; and now."""
        self._watcher = watcher
        watcher()

    def ready(self) -> Iterator[T]:
        """Yield what is there, without waiting; what is not taken stays."""
        while True:
            with self._changed:
                if not self._values:
                    return
                value = self._values.popleft()
            yield value

    @property
    def over(self) -> bool:
        """Whether everything was taken and nothing follows.

        Raises:
            BaseException: the error that ended the feed.
        """
        with self._changed:
            if self._values or not self._ended:
                return False
        if self._error is not None:
            raise self._error
        return True

    def __iter__(self) -> Iterator[T]:
        while not self.over:
            with self._changed:
                self._changed.wait_for(lambda: self._values or self._ended)
                taken = [self._values.popleft()] if self._values else []
            yield from taken

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if self._watcher is not None:
            self._watcher()
