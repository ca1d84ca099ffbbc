"""Races held between requests, once the first answer is out.

A race is a job of its own, so a request that comes meanwhile waits for one race at most, a
second or so, and an engine that is closed holds no more of them.
"""

import logging
from contextlib import suppress

import mlx.core as mx

from dflash_mlx.engine.learning import measured_again
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import DFlashError

_LOG = logging.getLogger("dflash_mlx")


def race_between(loaded: LoadedPair, worker: Worker) -> None:
    """Queue the next race of a pair on its thread, if one should be held."""
    kernels = loaded.kernels
    if kernels is None or not kernels.waiting:
        return

    def race() -> None:
        if not kernels.waiting:
            return
        another_waits = kernels.race_next()
        mx.clear_cache()
        if another_waits:
            race_between(loaded, worker)
            return
        if kernels.fault:
            _LOG.warning(kernels.fault)
        measured_again(loaded)

    with suppress(DFlashError):  # closed meanwhile
        worker.submit(race)
