"""The worker thread: order of jobs, errors, and closing."""

import subprocess
import sys
import threading

import pytest

from dflash_mlx.engine.closable_queue import ClosableQueue
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import DFlashError


def test_jobs_run_in_order_on_one_thread():
    """Two MLX jobs at once, or on two threads, failed in an assertion of the GPU driver."""
    worker = Worker("test")
    seen = []
    futures = [
        worker.submit(lambda i=i: seen.append((i, threading.get_ident()))) for i in range(20)
    ]
    for future in futures:
        future.result()
    assert [i for i, _ in seen] == list(range(20))
    assert len({thread for _, thread in seen}) == 1
    worker.close()


def test_an_error_goes_to_its_caller_and_the_next_job_runs():
    """One failed job ended the thread."""
    worker = Worker("test")
    with pytest.raises(ZeroDivisionError):
        worker.run(lambda: 1 // 0)
    assert worker.run(lambda: 7) == 7
    worker.close()


def test_a_job_may_run_another_one():
    """A job that ran another job on the worker waited for itself."""
    worker = Worker("test")
    assert worker.run(lambda: worker.run(lambda: 5)) == 5
    worker.close()


def test_close_cancels_running_and_waiting_jobs():
    """The end of a program waited for running answers."""
    worker = Worker("test")
    cancels = [threading.Event(), threading.Event()]
    jobs = [worker.submit(lambda c=c: c.wait(30), c) for c in cancels]
    worker.close()
    assert [job.result() for job in jobs] == [True, True]
    with pytest.raises(DFlashError, match="closed"):
        worker.run(lambda: 1)


def test_a_program_that_does_not_close_the_worker_exits_cleanly():
    """A thread that held MLX streams at exit aborted the process."""
    code = (
        "import mlx.core as mx\n"
        "from dflash_mlx.engine.worker import Worker\n"
        "f = mx.compile(lambda a: mx.exp(a) * 2)\n"
        "worker = Worker('test')\n"
        "worker.run(lambda: mx.eval(f(mx.ones((4,)))))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd="/")
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_queue_yields_its_values_before_its_error():
    """Text that arrived before a failure was lost."""
    values = ClosableQueue()
    values.put(1)
    values.put(2)
    values.end(ValueError("late"))
    got = []
    with pytest.raises(ValueError, match="late"):
        for value in values:
            got.append(value)
    assert got == [1, 2]
