"""A few threads that share one list of jobs; the first failure stops all of them.

Reading, packing and writing overlap because each thread does all three for its own rows. MLX's
streams belong to the thread that made them, so a thread gives its own back when it ends.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import mlx.core as mx

Item = TypeVar("Item")
N_WORKERS = 2


def run_all(jobs: Iterator[Item], work: Callable[[Item], None], n_workers: int = N_WORKERS) -> None:
    """Call `work` on every job, in order of taking, from `n_workers` threads.

    The first exception of a job is raised here after all threads have ended; so is an interrupt
    of the caller.
    """
    taking = threading.Lock()
    stopped = threading.Event()

    def loop() -> None:
        try:
            while not stopped.is_set():
                with taking:
                    job = next(jobs, None)
                if job is None:
                    break
                work(job)
        finally:
            stopped.set()
            mx.clear_streams()

    with ThreadPoolExecutor(n_workers) as pool:
        running = [pool.submit(loop) for _ in range(n_workers)]
        try:
            for future in running:
                future.result()
        finally:
            stopped.set()
