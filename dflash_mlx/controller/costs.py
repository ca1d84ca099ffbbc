"""Cost of a round by block size and context length: a measured curve and a Kalman filter over it.

It must not know acceptance, models or text.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Sensitivity: change of the mean ratio to the best fixed block size, in percent ± standard error,
# for half and for one and a half times the constant (docs/log.md, 2026-12-01).

_OBSERVATION_NOISE = 0.01
"""Variance of the log of one measured time around its cost (10% standard deviation). Sensitivity:
-0.04 ± 0.15 and +0.00 ± 0.16. Plain steps of the embedded pair vary by 10% (docs/log.md)."""

_MAX_INNOVATION = 2.5
"""Innovations are clipped to this many standard deviations: a page fault is not a new cost.
Sensitivity: +0.10 ± 0.16 and -0.40 ± 0.17. Without clipping: -0.95 ± 0.36."""

_MACHINE_VARIANCE = 0.01
"""Initial variance of the log error that all block sizes share. Sensitivity: -0.14 ± 0.11 and -0.00
± 0.10. Plain decoding differs by 10% between two answers (docs/log.md)."""

_PLAIN_VARIANCE = 0.0025
"""Initial variance of the log error of plain steps alone. Sensitivity: -0.05 ± 0.10 and +0.06 ±
0.12. With 0.0045, the variance of the median of three measurements, 8 instead of 6 of 150 scenarios
miss the second goal."""

_DRAFT_VARIANCE = 0.03
"""Initial variance of the log error that all rounds with a draft share. Sensitivity: -0.16 ± 0.18
and +0.13 ± 0.17. Costs stored while other programs ran were wrong by a factor of 1.17, a log error
of 0.16 (docs/log.md)."""

_BLOCK_SIZE_VARIANCE = _OBSERVATION_NOISE
"""Initial variance of the log error of one block size against its neighbours: calibration
interpolates most of them, which is no better than one measurement. Sensitivity: -0.07 ± 0.18 and
+0.02 ± 0.17."""

_CORRELATION_LENGTH = 3.0
"""Distance in block size at which the correlation of those errors has fallen to 1/e. Sensitivity:
-0.13 ± 0.18 and -0.28 ± 0.19."""

_MACHINE_PROCESS_NOISE = 1e-3
"""Variance that each round adds to the shared error: the machine's clock changes. Sensitivity:
+0.03 ± 0.18 and -0.22 ± 0.19."""

_BLOCK_SIZE_PROCESS_NOISE = 2e-5
"""Variance that each round adds to one block size: its relative cost hardly changes. Sensitivity:
-0.10 ± 0.21 and -0.05 ± 0.17. Without it (0), one of 38 scenarios misses the first goal, at 0.951.
"""

UNPIPELINED_COST = 1.1
"""Cost of an unpipelined plain step, in pipelined ones, before one is measured. Sensitivity: -0.09
± 0.07 and -0.04 ± 0.05. Measured: 0.93 to 1.17, on a CPU (docs/log.md)."""

_CONTEXT_GRAIN = 64
"""Context is rounded down to this many tokens for the cost table.

64 tokens change the cost ratio of two block sizes by at most 0.6% on ten of the twelve cost tables
of the simulator, and by 2 and 4% on the two with the most expensive context. Without rounding every
round interpolates the whole curve.
"""

_SHORT_CONTEXT = 2048
"""Contexts below this many tokens count as similar: attention is a small part of a step there.
Sensitivity: +0.03 ± 0.03 and -0.09 ± 0.07."""

_SIMILAR_CONTEXT = 2.0
"""Longest ratio of two contexts (plus `_SHORT_CONTEXT`) that still count as similar. Sensitivity:
+0.03 ± 0.03 and -0.09 ± 0.07. With all contexts similar: -0.48 ± 0.31."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a whole round (draft, verify, overhead), at one or more context lengths.

    `block_sizes` ascend from 1 and `contexts` (tokens) ascend; `seconds[i][j]` was measured at
    `contexts[i]` with `block_sizes[j]`. Beyond the longest context, each token of context adds
    `context_token_s` seconds for each token of the block.
    """

    block_sizes: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    context_token_s: float = 0.0

    def __post_init__(self) -> None:
        sizes, contexts = self.block_sizes, self.contexts
        assert sizes and sizes[0] == 1, sizes
        assert list(sizes) == sorted(set(sizes)), sizes
        assert contexts and list(contexts) == sorted(set(contexts)), contexts
        assert len(self.seconds) == len(contexts), (len(self.seconds), len(contexts))
        assert all(len(row) == len(sizes) for row in self.seconds), sizes

    def at(self, block_size: int, context: int) -> float:
        """Return the seconds of a round of `block_size` tokens after `context` tokens."""
        last = self.contexts[-1]
        if context >= last:
            measured = _interpolate(self.block_sizes, self.seconds[-1], block_size)
            return measured + (context - last) * block_size * self.context_token_s
        column = [_interpolate(self.block_sizes, row, block_size) for row in self.seconds]
        return _interpolate(self.contexts, column, max(context, self.contexts[0]))


class LiveCosts:
    """Current costs of rounds of 1 to `max_block_size` tokens. Lives as long as the pair.

    The state of the Kalman filter is a log correction to the curve for every block size, jointly
    Gaussian, with process noise and without dynamics: one round updates every block size as far as
    their errors are correlated. A machine that slows down while it drafts makes plain steps more
    expensive too, and the next plain step corrects the estimate for all block sizes. Nothing is
    assumed about the shape of the curve: matrix kernels have cliffs between two block sizes, so
    each observed block size also has an error of its own.
    """

    def __init__(self, curve: CostCurve, max_block_size: int) -> None:
        self.curve = curve
        self.max_block_size = n = max_block_size
        self._state = np.zeros(n)
        self._covariance = _initial_covariance(n)
        shared = np.full((n, n), _MACHINE_PROCESS_NOISE)
        self._process_noise = shared + np.eye(n) * _BLOCK_SIZE_PROCESS_NOISE
        self._observed: dict[int, tuple[int, int]] = {}  # block size -> (rounds, last context)
        self._context = 0
        self._grain = -1
        self._curve_ratios: Floats = np.ones(n)
        self._relative: list[float] = []
        self._log_unpipelined = math.log(UNPIPELINED_COST)
        self._unpipelined_variance = _PLAIN_VARIANCE

    @property
    def unpipelined(self) -> float:
        """Cost of a plain step that waits for the host on both sides, in pipelined plain steps."""
        return max(math.exp(self._log_unpipelined), 1.0)

    def seconds(self, block_size: int, context: int) -> float:
        """Return the expected seconds of a round."""
        return self.curve.at(block_size, context) * math.exp(self._state[block_size - 1])

    def relative(self, context: int) -> list[float]:
        """Return the costs of block sizes 1 to `max_block_size`, in plain steps."""
        if self._grain != context // _CONTEXT_GRAIN:
            self._grain = context // _CONTEXT_GRAIN
            costs = [self.curve.at(size, context) for size in range(1, self.max_block_size + 1)]
            self._curve_ratios = np.array(costs) / costs[0]
            self._relative = []
        if not self._relative:
            ratios = self._curve_ratios * np.exp(self._state - self._state[0])
            self._relative = ratios.tolist()
        return self._relative

    def observe(self, block_size: int, context: int, seconds: float) -> None:
        """Update from a round that took `seconds` (one Kalman step)."""
        if not _similar(context, self._context):
            self._covariance += _initial_covariance(self.max_block_size)
        at = block_size - 1
        measured = math.log(max(seconds, 1e-9) / self.curve.at(block_size, context))
        innovation = measured - self._state[at]
        self._covariance += self._process_noise
        variance = self._covariance[at, at] + _OBSERVATION_NOISE
        gain = self._covariance[at] / variance
        self._state += gain * _clipped(innovation, variance)
        self._covariance -= np.outer(gain, self._covariance[at])
        self._observed[block_size] = (self.n_observed(block_size, context) + 1, context)
        self._context = context
        self._relative = []

    def observe_unpipelined(self, context: int, seconds: float) -> None:
        """Update from an unpipelined plain step that took `seconds` (a filter of its own)."""
        variance = self._unpipelined_variance + _BLOCK_SIZE_PROCESS_NOISE
        measured = math.log(max(seconds, 1e-9) / self.seconds(1, context))
        gain = variance / (variance + _OBSERVATION_NOISE)
        innovation = _clipped(measured - self._log_unpipelined, variance + _OBSERVATION_NOISE)
        self._log_unpipelined += gain * innovation
        self._unpipelined_variance = variance * (1 - gain)

    def corrected_curve(self) -> CostCurve:
        """Return the curve, corrected at contexts similar to the last one observed."""
        block_sizes = tuple(range(1, self.max_block_size + 1))
        curve, context = self.curve, self._context
        rows = {
            other: tuple(curve.at(size, other) for size in block_sizes)
            for other in curve.contexts
            if not _similar(other, context)
        }
        if self._observed:
            rows[context] = tuple(self.seconds(size, context) for size in block_sizes)
        if not rows:
            return curve
        contexts = tuple(sorted(rows))
        seconds = tuple(rows[at] for at in contexts)
        return CostCurve(block_sizes, contexts, seconds, curve.context_token_s)

    def n_observed(self, block_size: int, context: int) -> int:
        """Return the number of rounds observed with this block size at a similar context."""
        n_rounds, last_context = self._observed.get(block_size, (0, 0))
        return n_rounds if _similar(last_context, context) else 0

    def largest_observed(self, context: int) -> int:
        """Return the largest block size observed at a similar context, at least 1."""
        sizes = (size for size in self._observed if self.n_observed(size, context))
        return max(sizes, default=1)


def _initial_covariance(n: int) -> Floats:
    """Return the covariance [n, n] of the curve's log errors before any round."""
    sizes = np.arange(1, n + 1)
    distance = np.abs(sizes[:, None] - sizes[None, :])
    drafting = _DRAFT_VARIANCE + _BLOCK_SIZE_VARIANCE * np.exp(-distance / _CORRELATION_LENGTH)
    drafting[0, :] = drafting[:, 0] = 0.0
    drafting[0, 0] = _PLAIN_VARIANCE
    covariance: Floats = drafting + _MACHINE_VARIANCE
    return covariance


def _clipped(innovation: float, variance: float) -> float:
    """Return an innovation of this variance, limited to `_MAX_INNOVATION` standard deviations."""
    limit = _MAX_INNOVATION * math.sqrt(variance)
    return min(max(innovation, -limit), limit)


def _similar(context: int, other: int) -> bool:
    ratio = (context + _SHORT_CONTEXT) / (other + _SHORT_CONTEXT)
    return 1 / _SIMILAR_CONTEXT <= ratio <= _SIMILAR_CONTEXT


def _interpolate(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Return y at `x`, piecewise linear; beyond the last point the last segment continues.

    A falling last segment does not continue: a larger block is never taken to be cheaper.
    """
    at = bisect_right(xs, x)
    if at == 0 or len(xs) == 1:
        return ys[0]
    beyond, at = at == len(xs), min(at, len(xs) - 1)
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    y = ys[at - 1] + share * (ys[at] - ys[at - 1])
    return max(y, ys[-1]) if beyond else y
