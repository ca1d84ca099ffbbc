"""Which kernels this machine uses: those that are right here, and at least 5% faster here.

A case asks it for one kernel and one shape. Its candidates are geometries of the kernel; each
is first compared with the reference and then raced against stock MLX. The gate knows neither
kernels nor arrays, only cases, a clock and a store; it raises nothing for a kernel that
fails, it says why. Racing takes at most a given time, and the caller chooses the moment.
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
from dflash_mlx.kernels.gate_store import GateStore
from dflash_mlx.metal.tuning_case import TuningCase

MIN_SPEEDUP: Final = 1.05
BUDGET_S: Final = 20.0
# Geometries raced per contest; the first one that the chip accepts is the best guess.
MAX_RACED: Final = 3
REPEATS: Final = 5
CHAIN_STEPS: Final = 16

Geometry = TypeVar("Geometry", bound=Any)
GeometryOut = TypeVar("GeometryOut", bound=Any, covariant=True)


@dataclass(frozen=True)
class Verdict(Generic[GeometryOut]):
    """The answer to a case: the candidate to use, or None, and the reason in words."""

    kernel: str
    shape: str
    geometry: GeometryOut | None
    reason: str


@dataclass(frozen=True)
class Gate:
    """Decides cases and remembers the answers in `store`.

    `evaluate` waits for an array; it raises ValueError or RuntimeError where the chip refuses
    a pipeline, for instance because of its thread limit.
    """

    store: GateStore
    policy: KernelPolicy = "auto"
    clock: Callable[[], float] = time.perf_counter
    evaluate: Callable[[mx.array], None] = mx.eval

    def recall(self, case: TuningCase[Geometry]) -> Verdict[Geometry] | None:
        """The stored answer, or None; with `off` always an answer. Takes no device time."""
        if self.policy == "off":
            return Verdict(case.kernel, case.shape, None, "kernels are off")
        entry = self.store.read(self._stored_key(case))
        if entry is None:
            return None
        known = {str(asdict(candidate)): candidate for candidate in case.candidates}
        geometry = known.get(str(entry.geometry))
        if entry.geometry is not None and geometry is None:
            return None
        return Verdict(case.kernel, case.shape, geometry, entry.reason)

    def answer(self, case: TuningCase[Geometry]) -> Verdict[Geometry]:
        """The stored answer, or that of a check and a race now, which is stored."""
        verdict = self.recall(case)
        if verdict is None:
            verdict = self._settle(case)
            stored = None if verdict.geometry is None else asdict(verdict.geometry)
            self.store.write(self._stored_key(case), stored, verdict.reason)
        return verdict

    def _stored_key(self, case: TuningCase[Geometry]) -> str:
        # A forced answer was never raced, so it must not pass for one that was.
        return f"{case.key} forced" if self.policy == "force" else case.key

    def _settle(self, case: TuningCase[Geometry]) -> Verdict[Geometry]:
        """Check candidates in order, race those that are right, take the fastest."""
        wanted = 1 if self.policy == "force" else MAX_RACED
        right: list[Geometry] = []
        refusals: list[str] = []
        for candidate in case.candidates:
            try:
                wrong = case.check(candidate)
            except (ValueError, RuntimeError, BadRequest) as refusal:
                refusals.append(str(refusal))
                continue
            if wrong is not None:
                # A kernel that is wrong in one geometry is trusted in none.
                return Verdict(case.kernel, case.shape, None, f"wrong: {wrong}")
            right.append(candidate)
            if len(right) == wanted:
                break
        if not right:
            reason = f"refused by this chip: {refusals[0]}" if refusals else "no geometry fits"
            return Verdict(case.kernel, case.shape, None, reason)
        if self.policy == "force":
            return Verdict(case.kernel, case.shape, right[0], "forced: right, not raced")
        try:
            return self._race(case, right)
        except (ValueError, RuntimeError) as refusal:
            reason = f"refused by this chip while racing: {refusal}"
            return Verdict(case.kernel, case.shape, None, reason)

    def _race(self, case: TuningCase[Geometry], right: Sequence[Geometry]) -> Verdict[Geometry]:
        stock_s = self._seconds(case.stock)
        timed = [(self._seconds(partial(case.ours, candidate)), candidate) for candidate in right]
        ours_s, fastest = min(timed, key=lambda pair: pair[0])
        speedup = stock_s / ours_s
        faster = speedup >= MIN_SPEEDUP
        reason = f"{speedup:.2f}x stock MLX ({1000 * ours_s:.3f} ms for {1000 * stock_s:.3f} ms)"
        if not faster:
            reason += f"; {MIN_SPEEDUP:.2f}x is needed"
        return Verdict(case.kernel, case.shape, fastest if faster else None, reason)

    def _seconds(self, chain: Callable[[int], mx.array]) -> float:
        """Median seconds of one step in a chain, compilation and first touch left out."""
        self.evaluate(chain(1))
        times = []
        for _ in range(REPEATS):
            started = self.clock()
            self.evaluate(chain(CHAIN_STEPS))
            times.append((self.clock() - started) / CHAIN_STEPS)
        return statistics.median(times)
