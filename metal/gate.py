"""Which kernels this machine uses: those that are right here, and at least 5% faster here.

A contest asks it for one kernel and one shape. Its entrants are geometries of the kernel; each
is first compared with the reference and then raced against stock MLX. The gate knows neither
kernels nor arrays, only contests, a clock and a store; it raises nothing for a kernel that
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
from dflash_mlx.metal.gate_store import GateStore

MIN_SPEEDUP: Final = 1.05
BUDGET_S: Final = 20.0
# Geometries raced per contest; the first one that the chip accepts is the best guess.
MAX_RACED: Final = 3
REPEATS: Final = 5
CHAIN_STEPS: Final = 16

Geometry = TypeVar("Geometry", bound=Any)
GeometryOut = TypeVar("GeometryOut", bound=Any, covariant=True)


@dataclass(frozen=True)
class Contest(Generic[Geometry]):
    """One kernel at one shape. `entrants` are dataclasses of ints, best guess first.

    `check` compares one entrant with the reference and returns what is wrong, or None.
    `ours` and `stock` build chains of that many steps, each depending on the one before, so
    that steps cannot overlap; the weights change from step to step, so that none stay in a
    cache that a model would have flushed.
    """

    kernel: str
    source_hash: str
    shape: str
    entrants: Sequence[Geometry]
    check: Callable[[Geometry], str | None]
    ours: Callable[[Geometry, int], mx.array]
    stock: Callable[[int], mx.array]

    @property
    def key(self) -> str:
        """Names the question; a changed kernel is another question."""
        return f"{self.kernel} {self.source_hash} {self.shape}"


@dataclass(frozen=True)
class Verdict(Generic[GeometryOut]):
    """The answer to a contest: the entrant to use, or None, and the reason in words."""

    kernel: str
    shape: str
    geometry: GeometryOut | None
    reason: str


@dataclass(frozen=True)
class Gate:
    """Decides contests and remembers the answers in `store`.

    `evaluate` waits for an array; it raises ValueError or RuntimeError where the chip refuses
    a pipeline, for instance because of its thread limit.
    """

    store: GateStore
    policy: KernelPolicy = "auto"
    clock: Callable[[], float] = time.perf_counter
    evaluate: Callable[[mx.array], None] = mx.eval

    def recall(self, contest: Contest[Geometry]) -> Verdict[Geometry] | None:
        """The stored answer, or None; with `off` always an answer. Takes no device time."""
        if self.policy == "off":
            return Verdict(contest.kernel, contest.shape, None, "kernels are off")
        entry = self.store.read(self._stored_key(contest))
        if entry is None:
            return None
        known = {str(asdict(entrant)): entrant for entrant in contest.entrants}
        geometry = known.get(str(entry.geometry))
        if entry.geometry is not None and geometry is None:
            return None
        return Verdict(contest.kernel, contest.shape, geometry, entry.reason)

    def answer(self, contest: Contest[Geometry]) -> Verdict[Geometry]:
        """The stored answer, or that of a check and a race now, which is stored."""
        verdict = self.recall(contest)
        if verdict is None:
            verdict = self._settle(contest)
            stored = None if verdict.geometry is None else asdict(verdict.geometry)
            self.store.write(self._stored_key(contest), stored, verdict.reason)
        return verdict

    def _stored_key(self, contest: Contest[Geometry]) -> str:
        # A forced answer was never raced, so it must not pass for one that was.
        return f"{contest.key} forced" if self.policy == "force" else contest.key

    def _settle(self, contest: Contest[Geometry]) -> Verdict[Geometry]:
        """Check entrants in order, race those that are right, take the fastest."""
        wanted = 1 if self.policy == "force" else MAX_RACED
        right: list[Geometry] = []
        refusals: list[str] = []
        for entrant in contest.entrants:
            try:
                wrong = contest.check(entrant)
            except (ValueError, RuntimeError, BadRequest) as refusal:
                refusals.append(str(refusal))
                continue
            if wrong is not None:
                # A kernel that is wrong in one geometry is trusted in none.
                return Verdict(contest.kernel, contest.shape, None, f"wrong: {wrong}")
            right.append(entrant)
            if len(right) == wanted:
                break
        if not right:
            reason = f"refused by this chip: {refusals[0]}" if refusals else "no geometry fits"
            return Verdict(contest.kernel, contest.shape, None, reason)
        if self.policy == "force":
            return Verdict(contest.kernel, contest.shape, right[0], "forced: right, not raced")
        try:
            return self._race(contest, right)
        except (ValueError, RuntimeError) as refusal:
            reason = f"refused by this chip while racing: {refusal}"
            return Verdict(contest.kernel, contest.shape, None, reason)

    def _race(self, contest: Contest[Geometry], right: Sequence[Geometry]) -> Verdict[Geometry]:
        stock_s = self._seconds(contest.stock)
        timed = [(self._seconds(partial(contest.ours, entrant)), entrant) for entrant in right]
        ours_s, fastest = min(timed, key=lambda pair: pair[0])
        speedup = stock_s / ours_s
        faster = speedup >= MIN_SPEEDUP
        reason = f"{speedup:.2f}x stock MLX ({1000 * ours_s:.3f} ms for {1000 * stock_s:.3f} ms)"
        if not faster:
            reason += f"; {MIN_SPEEDUP:.2f}x is needed"
        return Verdict(contest.kernel, contest.shape, fastest if faster else None, reason)

    def _seconds(self, chain: Callable[[int], mx.array]) -> float:
        """Median seconds of one step in a chain, compilation and first touch left out."""
        self.evaluate(chain(1))
        times = []
        for _ in range(REPEATS):
            started = self.clock()
            self.evaluate(chain(CHAIN_STEPS))
            times.append((self.clock() - started) / CHAIN_STEPS)
        return statistics.median(times)
