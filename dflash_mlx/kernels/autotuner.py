"""Autotuning: selects, per tuning case, the kernel geometry that is correct and at least 5% faster.

It must not know kernels, arrays or layers, only tuning cases, a clock and a result store.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import mlx.core as mx

from dflash_mlx.config import KernelPolicy
from dflash_mlx.errors import BadRequest
from dflash_mlx.kernels.result_store import MAX_ATTEMPTS, ResultStore, StoredResult
from dflash_mlx.kernels.timing import MAX_SPREAD, Comparison, Timer
from dflash_mlx.metal.tuning_case import TuningCase

MIN_SPEEDUP: Final = 1.05
"""Smaller gains are within the noise of clocks and temperature between two measurements."""

MAX_TIMED: Final = 3
"""Candidates timed per case. They come best guess first, so later ones rarely win."""

Geometry = TypeVar("Geometry", bound=Any)
GeometryOut = TypeVar("GeometryOut", bound=Any, covariant=True)


@dataclass(frozen=True)
class TuningResult(Generic[GeometryOut]):
    """The selected candidate of a tuning case, or None for stock MLX, and the reason."""

    kernel: str
    shape: str
    geometry: GeometryOut | None
    reason: str
    transient: bool = False
    """Whether the cause may be temporary, so that the case is tuned again at a later start."""


@dataclass(frozen=True)
class Autotuner:
    """Checks and times the candidates of tuning cases and stores the results.

    A kernel that fails raises nothing: the result says why stock MLX is used. `evaluate` waits
    for an array. It raises ValueError where the chip refuses a pipeline, for example because of
    its thread limit, and RuntimeError where a launch fails, for example for lack of memory. With
    `retry` the stored results of cases that failed are ignored.
    """

    store: ResultStore
    policy: KernelPolicy = "auto"
    clock: Callable[[], float] = time.perf_counter
    evaluate: Callable[[mx.array], None] = mx.eval
    retry: bool = False

    def stored(self, case: TuningCase[Geometry]) -> TuningResult[Geometry] | None:
        """Return the stored result, or None. Uses no device time.

        With the policy "off" every case has a result: stock MLX.
        """
        if self.policy == "off":
            return TuningResult(case.kernel, case.shape, None, "kernels are off")
        entry = self.store.read(self._stored_key(case))
        if entry is None or (entry.attempts and (self.retry or not entry.is_final)):
            return None
        known = {str(asdict(candidate)): candidate for candidate in case.candidates}
        geometry = known.get(str(entry.geometry))
        if entry.geometry is not None and geometry is None:
            return None
        return TuningResult(case.kernel, case.shape, geometry, entry.reason)

    def tune(self, case: TuningCase[Geometry]) -> TuningResult[Geometry]:
        """Return the stored result, or check and time the candidates now and store the result.

        The store marks the case before it begins: a case that ends the process is not started
        again.
        """
        result = self.stored(case)
        if result is not None:
            return result
        key = self._stored_key(case)
        before = self.store.read(key)
        self.store.begin(key)
        try:
            result = self._select(case)
        except BaseException:
            self.store.abandon(key)
            raise
        geometry = None if result.geometry is None else asdict(result.geometry)
        attempts = 0
        if result.transient:
            attempts = 1 if before is None else min(before.attempts + 1, MAX_ATTEMPTS)
        self.store.finish(key, StoredResult(geometry, result.reason, attempts))
        return result

    def _stored_key(self, case: TuningCase[Geometry]) -> str:
        # A forced result was never timed, so it must not count as a timed one.
        return f"{case.key} forced" if self.policy == "force" else case.key

    def _select(self, case: TuningCase[Geometry]) -> TuningResult[Geometry]:
        """Check candidates in order, time the correct ones, select the fastest."""
        wanted = 1 if self.policy == "force" else MAX_TIMED
        stock = partial(TuningResult[Geometry], case.kernel, case.shape, None)
        correct: list[Geometry] = []
        failures: list[Exception] = []
        for candidate in case.candidates:
            try:
                wrong = case.check(candidate)
            except (ValueError, RuntimeError, BadRequest) as failure:
                failures.append(failure)
                continue
            if wrong is not None:
                # A kernel that is wrong in one geometry is not used in any other.
                return stock(f"wrong: {wrong}")
            correct.append(candidate)
            if len(correct) == wanted:
                break
        if not correct:
            return stock(*_failed(failures)) if failures else stock("no geometry fits")
        if self.policy == "force":
            return TuningResult(case.kernel, case.shape, correct[0], "forced: correct, not timed")
        try:
            return self._fastest(case, correct)
        except (ValueError, RuntimeError) as failure:
            return stock(*_failed([failure]))

    def _fastest(
        self, case: TuningCase[Geometry], correct: Sequence[Geometry]
    ) -> TuningResult[Geometry]:
        """Select the candidate whose smallest speedup over the range of the case is largest."""
        timer = Timer(self.clock, self.evaluate)
        by_point = [
            timer.compare(
                work.stock, [partial(work.ours, candidate) for candidate in correct], MIN_SPEEDUP
            )
            for work in case.timed
        ]
        slowest = [
            min((comparisons[i] for comparisons in by_point), key=lambda c: c.speedup)
            for i in range(len(correct))
        ]
        best = max(range(len(correct)), key=lambda i: slowest[i].speedup)
        found = slowest[best]
        noisy = found.spread > MAX_SPREAD and not found.decided(MIN_SPEEDUP)
        faster = found.speedup >= MIN_SPEEDUP and not noisy
        return TuningResult(
            case.kernel,
            case.shape,
            correct[best] if faster else None,
            _timing(found, noisy),
            transient=noisy,
        )


def _failed(failures: Sequence[Exception]) -> tuple[str, bool]:
    """Return the reason of a failure and whether it may be temporary.

    MLX raises ValueError for a launch that the pipeline cannot take, and RuntimeError for lack of
    memory, a GPU timeout or a compiler error.
    """
    passing = [failure for failure in failures if isinstance(failure, RuntimeError)]
    if passing:
        return f"failed on this chip: {passing[0]}", True
    return f"refused by this chip: {failures[0]}", False


def _timing(found: Comparison, noisy: bool) -> str:
    """Return the result of a comparison as text."""
    ours, stock = 1000 * found.ours_s, 1000 * found.stock_s
    text = f"{found.speedup:.2f}x stock MLX ({ours:.3f} ms for {stock:.3f} ms"
    text += f", spread {100 * found.spread:.0f}%)"
    if noisy:
        return f"{text}; other work used the GPU, so the case is tuned again later"
    if found.speedup < MIN_SPEEDUP:
        return f"{text}; {MIN_SPEEDUP:.2f}x is needed"
    return text
