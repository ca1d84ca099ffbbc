"""Time spent in the decode loop, round by round, the caller's own time kept apart."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Laps that leave no gap: what is not in a lap is in `caller_s`, the pause before it."""

    def __init__(self) -> None:
        self.caller_s = 0.0
        self._began = time.perf_counter()
        self._paused_s = 0.0

    def running(self) -> float:
        """Return the seconds of the current lap so far."""
        return time.perf_counter() - self._began

    def lap(self) -> float:
        """End the lap and begin the next; return its seconds."""
        seconds = self.running()
        self._began += seconds
        self.caller_s, self._paused_s = self._paused_s, 0.0
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out of the current lap what happens inside."""
        stopped = time.perf_counter()
        yield
        self._paused_s = time.perf_counter() - stopped
        self._began += self._paused_s
