"""The slowdown budget: a bound on the time lost to speculation over a sliding window of tokens.

It must not know how a block size is chosen: the bound holds for any choice.
"""

import numpy as np


class SlowdownBudget:
    """Costs and tokens of the rounds over the last `span` tokens, in plain steps.

    Pipelined plain steps cost exactly their tokens, whatever a clock measures. Other costs are
    estimates, so they can be rescaled when plain steps are measured again.
    """

    def __init__(self, span: int) -> None:
        self._span = span
        self._sums = np.zeros((4 * span, 3))  # cumulative tokens, tokens with a cost, cost
        self._first, self._last = 0, 0

    def record(self, n_tokens: int, cost: float | None = None) -> None:
        """Add a round. `cost` is in plain steps; None for a pipelined plain step."""
        if self._last == len(self._sums) - 1:
            window = self._sums[self._first : self._last + 1].copy()
            self._sums[: len(window)] = window
            self._first, self._last = 0, len(window) - 1
        n_with_cost = 0 if cost is None else n_tokens
        now = self._sums[self._last] + (n_tokens, n_with_cost, cost or 0.0)
        self._last += 1
        self._sums[self._last] = now
        while self._sums[self._first, 0] < now[0] - self._span:
            self._first += 1

    def rescale(self, factor: float) -> None:
        """Multiply all costs by `factor`, because the estimate of a plain step changed."""
        self._sums[self._first : self._last + 1, 2] *= factor

    @property
    def lost_steps(self) -> float:
        """Plain steps lost since the least favourable start within the window, at least 0."""
        sums = self._sums[self._first : self._last + 1]
        lost = sums[:, 2] - sums[:, 1]
        return float(lost[-1] - lost.min())

    def allows(self, risk: float, share: float) -> bool:
        """Return whether a round that may lose `risk` plain steps stays within `share`."""
        return self.lost_steps + risk <= share * self._span
