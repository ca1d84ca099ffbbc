"""One thread that runs all MLX work of a pair, one job at a time, in order of arrival.

MLX arrays belong to the stream of the thread that made them, so loading, decoding, logits
processors and random keys run here, whatever threads callers use. It must not know the jobs.
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
    """A thread with a queue of jobs. It runs until `close`, or until the process ends."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._cancels: set[threading.Event] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        # a thread that holds MLX streams when the process ends would abort the process
        atexit.register(self.close)

    def run(self, job: Callable[[], T]) -> T:
        """Run `job` on the thread; return its result or raise its error."""
        if threading.current_thread() is self._thread:
            return job()
        return self.submit(job).result()

    def submit(self, job: Callable[[], T], cancel: threading.Event | None = None) -> "Future[T]":
        """Queue `job` and return the future of its result.

        Args:
            job: what to run.
            cancel: event that `close` sets while the job waits or runs.

        Raises:
            DFlashError: the worker is closed.
        """
        future: Future[T] = Future()
        cancel = cancel or threading.Event()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001  the future carries it to the caller
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
        """Cancel running and waiting jobs, then end the thread and free its memory."""
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
