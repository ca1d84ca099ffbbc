"""Compares the time of kernels with stock MLX: interleaved, warmed up, with medians and spread.

It must not know kernels or arrays, only functions that build chains and a clock.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

Chain = Callable[[int], mx.array]
"""Builds the lazy graph of a chain of that many steps."""

CHAIN_S: Final = 0.004
"""Wanted seconds per chain: 20 times the 0.2 ms that one `mx.eval` of a chain costs at most."""

STEPS: Final = (4, 64)
"""Smallest and largest number of steps in a chain. 64 steps bound the memory of the graph."""

WARM_UP_S: Final = 0.05
"""Device seconds before the first timed chain. GPU clocks ramp up within about 30 ms."""

ROUNDS: Final = (5, 25)
"""Smallest and largest number of rounds. A round times stock MLX and every kernel once."""

CERTAINTY: Final = 2.6
"""Standard errors between a median and the decision: 99% of a normal distribution."""

MAX_SPREAD: Final = 0.25
"""Relative standard deviation of speedups above which the device was busy with other work."""

# Standard deviation of normal values per median absolute deviation, and of a median per mean.
_MAD_TO_DEVIATION: Final = 1.4826
_MEDIAN_ERROR: Final = 1.2533


@dataclass(frozen=True)
class Comparison:
    """Median speedup of a kernel over stock MLX, its spread, and the median step times.

    `spread` is the relative standard deviation of the speedups of single rounds, and `error` that
    of their median.
    """

    speedup: float
    spread: float
    error: float
    ours_s: float
    stock_s: float

    def decided(self, threshold: float) -> bool:
        """Whether the median is far enough from `threshold` to be above or below it."""
        return abs(math.log(self.speedup / threshold)) > CERTAINTY * self.error


@dataclass(frozen=True)
class Timer:
    """Times chains with `clock`; `evaluate` waits for an array."""

    clock: Callable[[], float]
    evaluate: Callable[[mx.array], None]

    def compare(self, stock: Chain, kernels: Sequence[Chain], threshold: float) -> list[Comparison]:
        """Return the comparison of each kernel with stock MLX.

        Rounds are repeated until every comparison with `threshold` is decided. The order in a
        round rotates, so that a drifting clock rate affects all chains alike.
        """
        chains = [stock, *kernels]
        for chain in chains:
            self.evaluate(chain(1))  # compiles the pipelines
        steps = self._warm_up(chains)
        times: list[list[float]] = [[] for _ in chains]
        found: list[Comparison] = []
        for done in range(1, ROUNDS[1] + 1):
            for offset in range(len(chains)):
                index = (done + offset) % len(chains)
                times[index].append(self._seconds(chains[index], steps))
            if done >= ROUNDS[0]:
                found = [_comparison(ours, times[0]) for ours in times[1:]]
                if all(comparison.decided(threshold) for comparison in found):
                    break
        return found

    def _warm_up(self, chains: Sequence[Chain]) -> int:
        """Keep the device busy for `WARM_UP_S`; return the number of steps of a timed chain."""
        busy_s, slowest_s = 0.0, 0.0
        steps = STEPS[0]
        while busy_s < WARM_UP_S:
            slowest_s = 0.0
            for chain in chains:
                seconds = self._seconds(chain, steps)
                busy_s += steps * seconds
                slowest_s = max(slowest_s, seconds)
            steps = min(2 * steps, _steps(slowest_s))
        return _steps(slowest_s)

    def _seconds(self, chain: Chain, steps: int) -> float:
        """Return the seconds per step; the graph is built before the clock starts."""
        graph = chain(steps)
        started = self.clock()
        self.evaluate(graph)
        return (self.clock() - started) / steps


def _steps(step_s: float) -> int:
    return max(STEPS[0], min(STEPS[1], math.ceil(CHAIN_S / step_s))) if step_s > 0 else STEPS[1]


def _comparison(ours: Sequence[float], stock: Sequence[float]) -> Comparison:
    logs = [math.log(s / o) for o, s in zip(ours, stock, strict=True)]
    middle = statistics.median(logs)
    spread = _MAD_TO_DEVIATION * statistics.median(abs(value - middle) for value in logs)
    return Comparison(
        math.exp(middle),
        spread,
        _MEDIAN_ERROR * spread / math.sqrt(len(logs)),
        statistics.median(ours),
        statistics.median(stock),
    )
