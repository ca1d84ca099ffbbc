"""Autotuning of a pair's Metal kernels on its worker thread, on demand or between requests.

It must not know how a kernel is measured; `kernels` does.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

import mlx.core as mx

from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.measured_costs import remeasure_costs
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import DFlashError

_LOG = logging.getLogger("dflash_mlx")


def autotune_between_requests(loaded: LoadedPair, worker: Worker) -> None:
    """Queue the pair's next autotuning task on its worker thread, if one is due.

    Each task is a job of its own: a request that arrives meanwhile waits for at most one task,
    about a second, and closing the engine drops the remaining ones. No task runs while there are
    requests; the session calls this function again at the end of each.
    """
    kernels = loaded.kernels
    if kernels is None or not kernels.has_pending:
        return

    def run_task() -> None:
        if not kernels.has_pending or worker.has_requests:
            return
        more_tasks = kernels.tune_next()
        mx.clear_cache()
        if more_tasks:
            autotune_between_requests(loaded, worker)
            return
        if kernels.store_error:
            _LOG.warning(kernels.store_error)
        remeasure_costs(loaded)

    with suppress(DFlashError):  # the engine was closed in the meantime
        worker.submit(run_task)


def autotune_now(loaded: LoadedPair, on_step: Callable[[str], None]) -> None:
    """Run the pair's autotuning tasks, for at most 20 s; `on_step` receives one line for each.

    Call it on the worker thread.
    """
    if loaded.kernels is None:
        return
    loaded.kernels.autotune(on_step)
    mx.clear_cache()
    remeasure_costs(loaded)
