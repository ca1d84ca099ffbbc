"""What a round costs: measured seconds by rows and context, refined while decoding.

A *curve* is what was measured before the first request; *live costs* start from it and follow
the rounds that are seen. Nothing is assumed about the shape of a curve: cliffs between two
widths are a fact of matrix kernels, so a width that was seen is corrected by itself.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NOISE = 0.01
"""Variance of the log of one measured time around its cost."""

_CLIP = 2.5
"""Most that one round may tell, in standard errors: a page fault is no new cost."""

_MACHINE, _PLAIN, _DRAFT, _WIDTH = 0.01, 0.0025, 0.03, 0.01
"""Variances of what a curve may have wrong: in everything alike, in plain steps, in all drafting,
and in one width more than in the next."""

_MACHINE_WALK, _WIDTH_WALK = 1e-3, 2e-5
"""Variances that each round adds: machines change their state, widths keep their cost."""

_ALONE, _ALONE_ROUNDS, _ALONE_WALK, _MOST_ALONE = 1.1, 4.0, 0.02, 0.3
"""What a plain step by itself costs until it is seen, the steps that this guess counts for, the
least weight of a new one, and the most (in logs) that one may tell."""

_REACH = 3.0
"""Widths this far apart have little in common."""

_GRAIN = 64
"""Rows of context within which costs are the same."""

_SHORT, _NEAR = 2048, 2.0
"""Contexts are alike below so many rows, and while one is not so many times the other."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a whole round (draft, verify, overhead) by rows, at one or more contexts.

    `widths` ascend from 1, `contexts` (rows) ascend, and `seconds[i][j]` was measured at
    `contexts[i]` with `widths[j]` rows. `row_s` is what each row of context adds for each row of
    the block where no longer context was measured.
    """

    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    row_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.widths and self.widths[0] == 1, self.widths
        assert list(self.widths) == sorted(set(self.widths)), self.widths
        assert self.contexts and list(self.contexts) == sorted(set(self.contexts)), self.contexts
        assert len(self.seconds) == len(self.contexts), (len(self.seconds), len(self.contexts))
        assert all(len(row) == len(self.widths) for row in self.seconds), self.widths

    def at(self, n_rows: int, context: int) -> float:
        """Return the seconds of a round of `n_rows` rows behind `context` rows."""
        last = self.contexts[-1]
        if context >= last:
            measured = _between(self.widths, self.seconds[-1], n_rows)
            return measured + (context - last) * n_rows * self.row_s
        column = [_between(self.widths, row, n_rows) for row in self.seconds]
        return _between(self.contexts, column, max(context, self.contexts[0]))


class LiveCosts:
    """Costs of rounds of 1 to `max_rows` rows as they are now. Lives as long as the pair.

    Kept as a log-correction to the curve for every width, jointly Gaussian: what one round shows
    moves all widths as far as they have causes in common. A machine that heats up while it
    drafts makes plain steps dearer too, and the plain step that proves it wrong moves the
    drafting widths back. This is a Kalman filter whose state is a random walk.
    """

    def __init__(self, curve: CostCurve, max_rows: int) -> None:
        self.curve = curve
        self.max_rows = max_rows
        self._shift = np.zeros(max_rows)
        self._doubt = _first_doubt(max_rows)
        self._walk = np.full((max_rows, max_rows), _MACHINE_WALK) + np.eye(max_rows) * _WIDTH_WALK
        self._seen: dict[int, tuple[int, int]] = {}  # rows -> (rounds, context of the last)
        self._context = 0
        self._place = -1
        self._known: Floats = np.ones(max_rows)
        self._relative: list[float] = []
        self._alone = math.log(_ALONE)
        self._n_alone = _ALONE_ROUNDS

    @property
    def unpipelined(self) -> float:
        """What a plain step costs that waits for the host on both sides, in plain steps."""
        return max(math.exp(self._alone), 1.0)

    def seconds(self, n_rows: int, context: int) -> float:
        """Return the expected seconds of a round."""
        return self.curve.at(n_rows, context) * math.exp(self._shift[n_rows - 1])

    def relative(self, context: int) -> list[float]:
        """Return what rounds of 1 to `max_rows` rows cost, in plain steps."""
        if self._place != context // _GRAIN:
            self._place = context // _GRAIN
            costs = [self.curve.at(rows, context) for rows in range(1, self.max_rows + 1)]
            self._known = np.array(costs) / costs[0]
            self._relative = []
        if not self._relative:
            self._relative = (self._known * np.exp(self._shift - self._shift[0])).tolist()
        return self._relative

    def observe(self, n_rows: int, context: int, seconds: float) -> None:
        """Learn from a round that took `seconds`."""
        if not _alike(context, self._context):
            self._doubt += _first_doubt(self.max_rows)
        at = n_rows - 1
        news = math.log(max(seconds, 1e-9) / self.curve.at(n_rows, context)) - self._shift[at]
        self._doubt += self._walk
        variance = self._doubt[at, at] + _NOISE
        most = _CLIP * math.sqrt(variance)
        gain = self._doubt[at] / variance
        self._shift += gain * min(max(news, -most), most)
        self._doubt -= np.outer(gain, self._doubt[at])
        self._seen[n_rows] = (self.n_seen(n_rows, context) + 1, context)
        self._context = context
        self._relative = []

    def observe_unpipelined(self, context: int, seconds: float) -> None:
        """Learn from a plain step by itself that took `seconds`."""
        self._n_alone += 1
        weight = max(1 / self._n_alone, _ALONE_WALK)
        news = math.log(max(seconds, 1e-9) / self.seconds(1, context)) - self._alone
        self._alone += weight * min(max(news, -_MOST_ALONE), _MOST_ALONE)

    def learned(self) -> CostCurve:
        """Return the curve as corrected at the context last seen, other contexts as they were."""
        widths = tuple(range(1, self.max_rows + 1))
        curve, context = self.curve, self._context
        kept = {
            other: tuple(curve.at(rows, other) for rows in widths)
            for other in curve.contexts
            if not _alike(other, context)
        }
        if self._seen:
            kept[context] = tuple(self.seconds(rows, context) for rows in widths)
        if not kept:
            return curve
        contexts = tuple(sorted(kept))
        return CostCurve(widths, contexts, tuple(kept[at] for at in contexts), curve.row_s)

    def n_seen(self, n_rows: int, context: int) -> int:
        """Return how many rounds of `n_rows` rows were seen at about this context."""
        n_rounds, at = self._seen.get(n_rows, (0, 0))
        return n_rounds if _alike(at, context) else 0

    def widest_seen(self, context: int) -> int:
        """Return the most rows that a round was seen with at about this context, at least 1."""
        return max((rows for rows in self._seen if self.n_seen(rows, context)), default=1)


def _first_doubt(max_rows: int) -> Floats:
    """Return the covariance [rows, rows] of a curve's errors."""
    rows = np.arange(1, max_rows + 1)
    apart = np.abs(rows[:, None] - rows[None, :])
    drafting = _DRAFT + _WIDTH * np.exp(-apart / _REACH)
    drafting[0, :] = drafting[:, 0] = 0.0
    drafting[0, 0] = _PLAIN
    doubt: Floats = drafting + _MACHINE
    return doubt


def _alike(context: int, other: int) -> bool:
    return 1 / _NEAR <= (context + _SHORT) / (other + _SHORT) <= _NEAR


def _between(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Return y at `x` on straight lines between points; the last line goes on behind them."""
    at = bisect_right(xs, x)
    if at == 0 or len(xs) == 1:
        return ys[0]
    beyond, at = at == len(xs), min(at, len(xs) - 1)
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    y = ys[at - 1] + share * (ys[at] - ys[at - 1])
    return max(y, ys[-1]) if beyond else y
