"""Times the parts of a round separately: verify forward, draft forward, memory bandwidth.

It must not know how rounds are chosen or compared.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dflash_mlx.engine.engine import Engine
from dflash_mlx.models.pair import Pair

_REPEATS = 5
"""Timed calls, of which the median counts: two outliers do not move it."""

_STREAM_BYTES = 2**28
"""Bytes read to measure bandwidth: 256 MiB, more than the largest cache of any supported chip."""


@dataclass(frozen=True)
class Forward:
    """Seconds of one target forward over `block_size` tokens, and of the draft forward for them."""

    block_size: int
    verify_s: float
    draft_s: float


def forwards(engine: Engine, prompt: Sequence[int], block_sizes: Sequence[int]) -> list[Forward]:
    """Return the median times of the forwards after `prompt`, for every block size."""
    pair = engine.loaded.pair
    return engine.worker.run(lambda: [time_forwards(pair, prompt, size) for size in block_sizes])


def memory_speed(engine: Engine) -> float:
    """Return the memory bandwidth in bytes per second, measured by summing a large array."""
    return engine.worker.run(_stream)


def time_forwards(pair: Pair, prompt: Sequence[int], block_size: int) -> Forward:
    """Return the median times of the forwards after `prompt`; call it on the worker thread.

    The draft forward includes two new tokens of context. Block size 1 has no draft.
    """
    import mlx.core as mx

    cache = pair.make_cache()
    cache.append(len(prompt))
    features = pair.target.forward(
        mx.array([list(prompt)]), cache.layers, pair.target_layer_ids
    ).features
    cache.commit(len(prompt))
    mx.eval(features, *cache.arrays)
    tokens = mx.array([(list(prompt) * block_size)[:block_size]])

    def verify() -> None:
        cache.append(block_size)
        output = pair.target.forward(tokens, cache.layers, pair.target_layer_ids)
        mx.eval(mx.argmax(pair.target.logits(output.hidden), axis=-1), output.features)
        cache.rollback()

    verify_s = _timed(verify)
    if pair.draft is None or cache.context is None or block_size == 1:
        return Forward(block_size, verify_s, 0.0)
    draft, context = pair.draft, cache.context
    draft.extend(features, 0, context)
    mx.eval(*context.arrays)

    def propose() -> None:
        draft.extend(features[:, :2], context.length, context)
        mx.eval(draft.propose(prompt[-1], block_size, context).tokens)
        context.trim_to(len(prompt))

    return Forward(block_size, verify_s, _timed(propose))


def _stream() -> float:
    import mlx.core as mx

    array = mx.zeros(_STREAM_BYTES // 4)
    mx.eval(array)
    return _STREAM_BYTES / _timed(lambda: mx.eval(mx.sum(array)))


def _timed(work: Callable[[], None]) -> float:
    """Return the median seconds of `work`, after one call that is not timed."""
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)
