"""Runs several requests in turns: one prefill chunk or one decoding round of each at a time.

It belongs to the worker thread. It must not know models, text or what a step computes.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

DEFAULT_PARALLEL: Final = 4
"""Requests that run at a time. With n running requests each answer is written n times slower, so
more than a few only lengthen all of them; those above wait in order of arrival."""


@dataclass(frozen=True)
class _Request:
    steps: Iterator[None]
    group: Hashable


class Scheduler:
    """Requests in order of arrival, of which `parallel` run in turns.

    A short request beside a long prefill is delayed by at most one chunk and one round of every
    other running request. Requests of one group (the turns of one session) never run together.
    """

    def __init__(self, parallel: int = DEFAULT_PARALLEL) -> None:
        self._parallel = parallel
        self._waiting: deque[_Request] = deque()
        self._running: deque[_Request] = deque()

    @property
    def idle(self) -> bool:
        """Whether no request is running or waiting."""
        return not self._running and not self._waiting

    @property
    def n_running(self) -> int:
        """Number of running requests."""
        return len(self._running)

    def add(self, steps: Iterator[None], group: Hashable) -> None:
        """Queue a request, whose `steps` are run one at a time until they end or raise."""
        self._waiting.append(_Request(steps, group))

    def step(self) -> None:
        """Run one step of the running request whose turn it is.

        A request that ends, or raises an error, leaves the others running. The error is raised.
        """
        self._start_waiting()
        if not self._running:
            return
        request = self._running.popleft()
        for _ in request.steps:
            self._running.append(request)
            return

    def _start_waiting(self) -> None:
        """Start waiting requests in order of arrival, except those whose group is running."""
        groups = {request.group for request in self._running}
        for request in tuple(self._waiting):
            if len(self._running) >= self._parallel:
                return
            if request.group not in groups:
                self._waiting.remove(request)
                self._running.append(request)
            groups.add(request.group)
