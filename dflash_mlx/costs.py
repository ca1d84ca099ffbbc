"""What a round costs: measured seconds by rows and context, refined while decoding.

A *curve* is what was measured before the first request; *live costs* start from it and follow
the rounds that are seen. Nothing is assumed about the shape of a curve: cliffs between two
widths are a fact of matrix kernels, so a width that was seen is corrected by itself.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_STEADY_GAIN = 0.1
"""Weight of a new round once a width has been seen often: a memory of about ten rounds."""

_CLIP = 0.4
"""Most that one round may move a log-cost: a page fault is no new cost."""


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
    """Costs of rounds as they are now on this machine. Lives as long as the pair."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self._shift: dict[int, float] = {}  # by rows: log(seen / curve)
        self._n_seen: dict[int, int] = {}

    def seconds(self, n_rows: int, context: int) -> float:
        """Return the expected seconds of a round."""
        return self.curve.at(n_rows, context) * math.exp(self._shift_of(n_rows))

    def observe(self, n_rows: int, context: int, seconds: float) -> None:
        """Learn from a round that took `seconds`."""
        seen = math.log(max(seconds, 1e-9) / self.curve.at(n_rows, context))
        known = self._shift_of(n_rows)
        n_seen = self._n_seen.get(n_rows, 0)
        gain = max(1 / (n_seen + 2), _STEADY_GAIN)
        step = min(max(seen - known, -_CLIP), _CLIP)
        self._shift[n_rows] = known + gain * step
        self._n_seen[n_rows] = n_seen + 1

    def n_seen(self, n_rows: int) -> int:
        """Return how many rounds of `n_rows` rows were observed."""
        return self._n_seen.get(n_rows, 0)

    def _shift_of(self, n_rows: int) -> float:
        """Return a width's correction; a drafting width not seen takes its neighbours'."""
        if n_rows in self._shift or n_rows == 1:
            return self._shift.get(n_rows, 0.0)
        seen = sorted(width for width in self._shift if width > 1)
        return _between(seen, [self._shift[width] for width in seen], n_rows) if seen else 0.0


def _between(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Return y at `x` on straight lines between points, level outside them."""
    at = bisect_right(xs, x)
    if at == 0:
        return ys[0]
    if at == len(xs):
        return ys[-1]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])
