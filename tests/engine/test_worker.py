"""The worker thread: order of jobs, errors, and closing."""

import os
import subprocess
import sys
import threading

import pytest

from dflash_mlx.engine.closable_queue import ClosableQueue
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import DFlashError, EngineBusy


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


def steps_of(name, n_steps, order, result=None):
    """A request of `n_steps` steps that notes each in `order`."""

    def request():
        for number in range(n_steps):
            order.append(f"{name}{number}")
            yield
        return result

    return request


def serve_together(worker, *requests):
    """Queue requests while the thread is busy, so that they start together."""
    start = threading.Event()
    worker.submit(start.wait)
    futures = [worker.serve(request, threading.Event(), group) for request, group in requests]
    start.set()
    return [future.result(timeout=10) for future in futures]


def test_requests_take_turns():
    """A short answer waited for a 32,000-token prompt beside it."""
    worker, order = Worker("test"), []
    long, short = steps_of("long", 6, order, "L"), steps_of("short", 2, order, "S")
    assert serve_together(worker, (long, 1), (short, 2)) == ["L", "S"]
    assert order == ["long0", "short0", "long1", "short1", "long2", "long3", "long4", "long5"]
    worker.close()


def test_requests_of_one_session_run_one_after_the_other():
    """The second turn needs the answer of the first."""
    worker, order = Worker("test"), []
    requests = [(steps_of(name, 2, order), name in "ab") for name in "abc"]
    serve_together(worker, *requests)
    assert order == ["a0", "c0", "a1", "c1", "b0", "b1"]
    worker.close()


def test_requests_above_the_limit_wait_in_order_of_arrival():
    """With a hundred running requests all of them time out."""
    worker, order = Worker("test", parallel=2), []
    serve_together(worker, *((steps_of(name, 2, order), name) for name in "abcd"))
    assert order == ["a0", "b0", "a1", "b1", "c0", "d0", "c1", "d1"]
    worker.close()


def test_a_request_that_fails_leaves_the_others_running():
    """One bad request ended every running answer."""
    worker, order = Worker("test"), []

    def failing():
        yield
        raise ZeroDivisionError

    future = worker.serve(failing, threading.Event(), "bad")
    assert serve_together(worker, (steps_of("good", 3, order, 5), "good")) == [5]
    with pytest.raises(ZeroDivisionError):
        future.result(timeout=10)
    worker.close()


def test_jobs_run_between_the_steps_of_requests():
    """A statistic that was asked for during a long answer came after it."""
    worker = Worker("test")
    running = threading.Event()

    def request():
        while not running.is_set():
            yield

    future = worker.serve(request, running, "group")
    assert worker.run(lambda: 7) == 7
    running.set()
    future.result(timeout=10)
    worker.close()


def test_a_job_that_queues_the_next_one_lets_requests_in_between():
    """Autotuning queues 48 tasks one after the other, and a request waited for all of them."""
    worker, order = Worker("test"), []
    done = threading.Event()

    def job(number):
        order.append(number)
        if number < 5:
            worker.submit(lambda: job(number + 1))
        else:
            done.set()

    start = threading.Event()
    worker.submit(start.wait)
    worker.submit(lambda: job(0))
    worker.serve(steps_of("request", 3, order), threading.Event(), "group")
    start.set()
    assert done.wait(10)
    worker.close()
    assert order == [0, "request0", 1, "request1", 2, "request2", 3, 4, 5]


def test_closing_cancels_requests_and_waits_for_their_end():
    """Requests that waited when the engine closed hung their readers."""
    worker = Worker("test", parallel=1)
    cancels = [threading.Event(), threading.Event()]

    def request(cancel):
        while not cancel.is_set():
            yield
        return "cancelled"

    futures = [worker.serve(lambda c=c: request(c), c, c) for c in cancels]
    worker.close()
    assert [future.result(timeout=10) for future in futures] == ["cancelled", "cancelled"]


def test_a_full_queue_refuses_at_once(monkeypatch):
    """A queue without a bound answers minutes after the client has gone."""
    monkeypatch.setattr("dflash_mlx.engine.worker.MAX_WAITING", 2)
    worker = Worker("test", parallel=1)
    release = threading.Event()
    worker.submit(release.wait)
    order = []
    futures = [worker.serve(steps_of(n, 1, order), threading.Event(), n) for n in "abc"]
    with pytest.raises(EngineBusy, match="3 requests are running or waiting"):
        worker.serve(steps_of("d", 1, order), threading.Event(), "d")
    release.set()
    for future in futures:
        future.result(timeout=10)
    worker.close()


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


def test_several_threads_may_read_one_queue():
    """Two threads that read one stream got "generator already executing"."""
    values = ClosableQueue()
    got = [[], []]
    threads = [threading.Thread(target=lambda one=one: one.extend(values)) for one in got]
    for thread in threads:
        thread.start()
    for number in range(2000):
        values.put(number)
    values.end()
    for thread in threads:
        thread.join()
    assert sorted(got[0] + got[1]) == list(range(2000))
    assert values.last == 1999


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("use", ["run(int)", "submit(int)", "serve(iter, None, 0)"])
def test_the_child_of_a_fork_gets_an_error(use):
    """A child waited for ever for a thread that only its parent has."""
    code = (
        "import os\n"
        "from dflash_mlx.engine.worker import Worker\n"
        "from dflash_mlx.errors import DFlashError\n"
        "worker = Worker('test')\n"
        "if (child := os.fork()) == 0:\n"
        f"    try: worker.{use}\n"
        "    except DFlashError as error: worker.close(); os._exit('fork' not in str(error))\n"
        "    os._exit(1)\n"
        "raise SystemExit(os.waitpid(child, 0)[1])\n"
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=60, cwd="/")
    assert ended.returncode == 0
