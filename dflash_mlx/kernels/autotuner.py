"""Autotuning: selects, per tuning case, the kernel geometry that is correct and at least 5% faster.

It must not know kernels, arrays or layers, only tuning cases, a clock and a result store.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import mlx.core as mx

from dflash_mlx.config import KernelPolicy
from dflash_mlx.errors import BadRequest
from dflash_mlx.kernels.result_store import ResultStore
from dflash_mlx.metal.tuning_case import TuningCase

MIN_SPEEDUP: Final = 1.05
BUDGET_S: Final = 20.0
# Candidates timed per case. They come best guess first, so later ones rarely win.
MAX_TIMED: Final = 3
REPEATS: Final = 5
CHAIN_STEPS: Final = 16

Geometry = TypeVar("Geometry", bound=Any)
GeometryOut = TypeVar("GeometryOut", bound=Any, covariant=True)


@dataclass(frozen=True)
class TuningResult(Generic[GeometryOut]):
    """The selected candidate of a tuning case, or None for stock MLX, and the reason."""

    kernel: str
    shape: str
    geometry: GeometryOut | None
    reason: str


@dataclass(frozen=True)
class Autotuner:
    """Checks and times the candidates of tuning cases and stores the results.

    A kernel that fails raises nothing: the result says why stock MLX is used. `evaluate` waits
    for an array; it raises ValueError or RuntimeError where the chip refuses a pipeline, for
    example because of its thread limit.
    """

    store: ResultStore
    policy: KernelPolicy = "auto"
    clock: Callable[[], float] = time.perf_counter
    evaluate: Callable[[mx.array], None] = mx.eval

    def stored(self, case: TuningCase[Geometry]) -> TuningResult[Geometry] | None:
        """Return the stored result, or None. Uses no device time.

        With the policy "off" every case has a result: stock MLX.
        """
        if self.policy == "off":
            return TuningResult(case.kernel, case.shape, None, "kernels are off")
        entry = self.store.read(self._stored_key(case))
        if entry is None:
            return None
        known = {str(asdict(candidate)): candidate for candidate in case.candidates}
        geometry = known.get(str(entry.geometry))
        if entry.geometry is not None and geometry is None:
            return None
        return TuningResult(case.kernel, case.shape, geometry, entry.reason)

    def tune(self, case: TuningCase[Geometry]) -> TuningResult[Geometry]:
        """Return the stored result, or check and time the candidates now and store the result."""
        result = self.stored(case)
        if result is None:
            result = self._select(case)
            stored = None if result.geometry is None else asdict(result.geometry)
            self.store.write(self._stored_key(case), stored, result.reason)
        return result

    def _stored_key(self, case: TuningCase[Geometry]) -> str:
        # A forced result was never timed, so it must not count as a timed one.
        return f"{case.key} forced" if self.policy == "force" else case.key

    def _select(self, case: TuningCase[Geometry]) -> TuningResult[Geometry]:
        """Check candidates in order, time the correct ones, select the fastest."""
        wanted = 1 if self.policy == "force" else MAX_TIMED
        correct: list[Geometry] = []
        refusals: list[str] = []
        for candidate in case.candidates:
            try:
                wrong = case.check(candidate)
            except (ValueError, RuntimeError, BadRequest) as refusal:
                refusals.append(str(refusal))
                continue
            if wrong is not None:
                # A kernel that is wrong in one geometry is not used in any other.
                return TuningResult(case.kernel, case.shape, None, f"wrong: {wrong}")
            correct.append(candidate)
            if len(correct) == wanted:
                break
        if not correct:
            reason = f"refused by this chip: {refusals[0]}" if refusals else "no geometry fits"
            return TuningResult(case.kernel, case.shape, None, reason)
        if self.policy == "force":
            return TuningResult(case.kernel, case.shape, correct[0], "forced: correct, not timed")
        try:
            return self._fastest(case, correct)
        except (ValueError, RuntimeError) as refusal:
            reason = f"refused by this chip while timing: {refusal}"
            return TuningResult(case.kernel, case.shape, None, reason)

    def _fastest(
        self, case: TuningCase[Geometry], correct: Sequence[Geometry]
    ) -> TuningResult[Geometry]:
        stock_s = self._seconds(case.stock)
        timed = [(self._seconds(partial(case.ours, candidate)), candidate) for candidate in correct]
        ours_s, fastest = min(timed, key=lambda pair: pair[0])
        speedup = stock_s / ours_s
        faster = speedup >= MIN_SPEEDUP
        reason = f"{speedup:.2f}x stock MLX ({1000 * ours_s:.3f} ms for {1000 * stock_s:.3f} ms)"
        if not faster:
            reason += f"; {MIN_SPEEDUP:.2f}x is needed"
        return TuningResult(case.kernel, case.shape, fastest if faster else None, reason)

    def _seconds(self, chain: Callable[[int], mx.array]) -> float:
        """Return the median seconds of one step in a chain, without compilation."""
        self.evaluate(chain(1))
        times = []
        for _ in range(REPEATS):
            started = self.clock()
            self.evaluate(chain(CHAIN_STEPS))
            times.append((self.clock() - started) / CHAIN_STEPS)
        return statistics.median(times)
