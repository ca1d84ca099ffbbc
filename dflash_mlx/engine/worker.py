"""One thread that owns all MLX work of a pair.

MLX arrays belong to the stream of the thread that made them, so loading, decoding, user
processors and random keys all happen here, whatever threads callers use. Jobs run one at a time
in the order they came.
"""

import atexit
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import mlx.core as mx

from dflash_mlx.errors import DFlashError

T = TypeVar("T")


class Worker:
    """A thread with a queue of jobs. It ends with the process, or with `close`."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._cancels: set[threading.Event] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        # a thread that still holds MLX streams when the process ends aborts it
        atexit.register(self.close)

    def run(self, job: Callable[[], T]) -> T:
        """Run `job` on the thread and return its result, or raise what it raised."""
        if threading.current_thread() is self._thread:
            return job()
        return self.submit(job).result()

    def submit(self, job: Callable[[], T], cancel: threading.Event | None = None) -> "Future[T]":
        """Queue `job`; the future holds its result. `close` sets `cancel` while it is under way.

        Raises:
            DFlashError: the worker is closed.
        """
        future: Future[T] = Future()
        cancel = cancel or threading.Event()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001  carried to the caller, whole
                future.set_exception(error)
            finally:
                with self._lock:
                    self._cancels.discard(cancel)

        with self._lock:
            if self._closed:
                raise DFlashError("this engine is closed; load the model again")
            self._cancels.add(cancel)
            self._jobs.put(run)
        return future

    def close(self) -> None:
        """Cancel what runs and what waits, then end the thread and let go of its memory."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
                for cancel in self._cancels:
                    cancel.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job
        mx.clear_streams()
