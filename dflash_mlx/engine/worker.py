"""One thread that runs all MLX work of a pair: jobs at once, requests in turns.

MLX arrays belong to the stream of the thread that made them, so loading, decoding, logits
processors and random keys run here, whatever threads callers use. It must not know the jobs.
"""

import atexit
import os
import queue
import threading
from collections.abc import Callable, Generator, Hashable, Iterator
from concurrent.futures import Future
from typing import Final, TypeVar

import mlx.core as mx

from dflash_mlx.engine.scheduler import DEFAULT_PARALLEL, Scheduler
from dflash_mlx.errors import DFlashError, EngineBusy

T = TypeVar("T")

MAX_WAITING: Final = 256
"""Requests that may wait. A caller that sends more is better told at once than minutes later."""


def check_process(pid: int) -> None:
    """Raise DFlashError unless this is the process `pid`: its threads do not exist in a fork."""
    if os.getpid() != pid:
        raise DFlashError(
            f"this engine was loaded in process {pid}, and process {os.getpid()} is a fork without "
            "its thread; load the model after the fork"
        )


class Worker:
    """A thread that runs jobs between the steps of requests.

    It runs until `close`, or until the process ends.

    Args:
        name: name of the thread.
        parallel: requests that run in turns; the others wait in order of arrival.
    """

    def __init__(self, name: str, parallel: int = DEFAULT_PARALLEL) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._scheduler = Scheduler(parallel)
        self._cancels: set[threading.Event] = set()
        self._n_requests = 0
        self._max_requests = parallel + MAX_WAITING
        self._closed = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        # a thread that holds MLX streams when the process ends would abort the process
        atexit.register(self.close)

    def run(self, job: Callable[[], T]) -> T:
        """Run `job` on the thread; return its result or raise its error."""
        check_process(self._pid)
        if threading.current_thread() is self._thread:
            return job()
        return self.submit(job).result()

    def submit(self, job: Callable[[], T], cancel: threading.Event | None = None) -> "Future[T]":
        """Run `job` before the next step of any request and return the future of its result.

        Args:
            job: what to run.
            cancel: event that `close` sets while the job waits or runs.

        Raises:
            DFlashError: the worker is closed, or belongs to the parent of a fork.
        """
        check_process(self._pid)
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
            self._put(run, cancel)
        return future

    def serve(
        self,
        request: Callable[[], Generator[None, None, T]],
        cancel: threading.Event,
        group: Hashable,
    ) -> "Future[T]":
        """Run a request step by step, in turns with others; return the future of its result.

        Args:
            request: returns the generator of steps, whose return value is the result.
            cancel: event that `close` sets while the request waits or runs.
            group: requests of one group run one after the other, in order of arrival.

        Raises:
            DFlashError: the worker is closed.
            EngineBusy: `MAX_WAITING` requests are waiting.
        """
        check_process(self._pid)
        future: Future[T] = Future()

        def steps() -> Iterator[None]:
            try:
                future.set_result((yield from request()))
            except BaseException as error:  # noqa: BLE001  the future carries it to the caller
                future.set_exception(error)
            finally:
                with self._lock:
                    self._cancels.discard(cancel)
                    self._n_requests -= 1

        with self._lock:
            if self._n_requests >= self._max_requests:
                raise EngineBusy(
                    f"{self._n_requests} requests are running or waiting and the limit is "
                    f"{self._max_requests}; send this request later"
                )
            self._put(lambda: self._scheduler.add(steps(), group), cancel)
            self._n_requests += 1
        return future

    @property
    def has_requests(self) -> bool:
        """Whether a request is running or waiting."""
        return self._n_requests > 0

    def close(self) -> None:
        """Cancel running and waiting jobs, then end the thread and free its memory.

        In the child of a fork it does nothing.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
                for cancel in self._cancels:
                    cancel.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def _put(self, job: Callable[[], None], cancel: threading.Event) -> None:
        """Queue `job`; the caller holds the lock."""
        if self._closed:
            raise DFlashError("this engine is closed; load the model again")
        self._cancels.add(cancel)
        self._jobs.put(job)

    def _work(self) -> None:
        open_ = True
        while open_ or not self._scheduler.idle:
            open_ = self._run_jobs(wait=open_ and self._scheduler.idle) and open_
            self._scheduler.step()
        mx.clear_streams()

    def _run_jobs(self, wait: bool) -> bool:
        """Run the jobs that have arrived, after waiting for one if asked; False ends the thread.

        A job that queues another one, as autotuning does, does not keep requests waiting: the new
        job runs after their next step.
        """
        for _ in range(max(self._jobs.qsize(), int(wait))):
            job = self._jobs.get()
            if job is None:
                return False
            job()
        return True
