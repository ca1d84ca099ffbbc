"""Runs work on a shared iterator of items in a few threads; the first failure stops all of them.

Each thread reads, quantizes and writes its own rows, so that these three steps overlap.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import mlx.core as mx

Item = TypeVar("Item")
N_WORKERS = 2
"""Two threads hide the disk behind the computation. Each one adds about five chunks of memory."""


def run_all(
    items: Iterator[Item], work: Callable[[Item], None], n_workers: int = N_WORKERS
) -> None:
    """Call `work` on every item from `n_workers` threads; items are taken in order.

    Raises:
        BaseException: the first failure of `work`, or an interrupt of the caller, after all
            threads have ended.
    """
    taking = threading.Lock()
    stopped = threading.Event()

    def loop() -> None:
        try:
            while not stopped.is_set():
                with taking:
                    item = next(items, None)
                if item is None:
                    break
                work(item)
        finally:
            stopped.set()
            mx.clear_streams()  # MLX keeps the streams of a thread until the thread clears them

    with ThreadPoolExecutor(n_workers) as pool:
        running = [pool.submit(loop) for _ in range(n_workers)]
        try:
            for future in running:
                future.result()
        finally:
            stopped.set()
