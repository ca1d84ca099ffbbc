"""The bare parts of a round, timed apart: verify, draft, and how fast memory is read at all."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dflash_mlx.engine.engine import Engine

_REPEATS = 5
_STREAM_BYTES = 2**28


@dataclass(frozen=True)
class Forward:
    """Seconds of one target forward over `n_rows` rows, and of the draft that proposes them."""

    n_rows: int
    verify_s: float
    draft_s: float


def forwards(engine: Engine, prompt: Sequence[int], widths: Sequence[int]) -> list[Forward]:
    """Return the bare forwards of each width behind `prompt`, medians of a few."""
    return engine.worker.run(lambda: [_forward(engine, prompt, width) for width in widths])


def memory_speed(engine: Engine) -> float:
    """Return the bytes per second that the device reads to sum a large array."""
    return engine.worker.run(_stream)


def _forward(engine: Engine, prompt: Sequence[int], n_rows: int) -> Forward:
    import mlx.core as mx

    pair = engine.loaded.pair
    cache = pair.make_cache()
    cache.append(len(prompt))
    features = pair.target.forward(
        mx.array([list(prompt)]), cache.layers, pair.target_layer_ids
    ).features
    cache.commit(len(prompt))
    mx.eval(features, *cache.arrays)
    tokens = mx.array([(list(prompt) * n_rows)[:n_rows]])

    def verify() -> None:
        cache.append(n_rows)
        walked = pair.target.forward(tokens, cache.layers, pair.target_layer_ids)
        mx.eval(mx.argmax(pair.target.logits(walked.hidden), axis=-1), walked.features)
        cache.rollback()

    verify_s = _timed(verify)
    if pair.draft is None or cache.context is None or n_rows == 1:
        return Forward(n_rows, verify_s, 0.0)
    draft, context = pair.draft, cache.context
    draft.extend(features, 0, context)
    mx.eval(*context.arrays)

    def propose() -> None:
        draft.extend(features[:, :2], context.length, context)
        mx.eval(draft.propose(prompt[-1], n_rows, context).tokens)
        context.trim_to(len(prompt))

    return Forward(n_rows, verify_s, _timed(propose))


def _stream() -> float:
    import mlx.core as mx

    array = mx.zeros(_STREAM_BYTES // 4)
    mx.eval(array)
    return _STREAM_BYTES / _timed(lambda: mx.eval(mx.sum(array)))


def _timed(work: Callable[[], None]) -> float:
    """Return the median seconds of `work`, once done before."""
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)
