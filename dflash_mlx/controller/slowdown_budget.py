"""The books: how far behind plain decoding an answer is, from wherever one begins to count.

Losses are in plain steps. The ledger is what makes "never slower" a property of the code and
not of its tuning: a round that could take the worst stretch beyond the allowance is not drafted.
"""

import numpy as np


class SlowdownBudget:
    """Prices and tokens of the last `span` tokens' rounds, but for plain steps in a row.

    Such a step costs its token by definition, whatever a clock says of it. Prices are estimates
    until plain steps are measured again, so they can be corrected afterwards.
    """

    def __init__(self, span: int) -> None:
        self._span = span
        self._places = np.zeros((4 * span, 3))  # sums so far: tokens, priced tokens, price
        self._first, self._last = 0, 0

    def book(self, n_tokens: int, price: float | None = None) -> None:
        """Enter a round: its tokens, and its price in plain steps; None for one in a row."""
        if self._last == len(self._places) - 1:
            kept = self._places[self._first : self._last + 1].copy()
            self._places[: len(kept)] = kept
            self._first, self._last = 0, len(kept) - 1
        priced = 0 if price is None else n_tokens
        now = self._places[self._last] + (n_tokens, priced, price or 0.0)
        self._last += 1
        self._places[self._last] = now
        while self._places[self._first, 0] < now[0] - self._span:
            self._first += 1

    def correct(self, factor: float) -> None:
        """Multiply all prices: a plain step turned out to be shorter or longer."""
        self._places[self._first : self._last + 1, 2] *= factor

    @property
    def worst(self) -> float:
        """Plain steps lost since the least favourable beginning within the span, at least 0."""
        places = self._places[self._first : self._last + 1]
        lost = places[:, 2] - places[:, 1]
        return float(lost[-1] - lost.min())

    def allows(self, risk: float, share: float) -> bool:
        """Whether a round that may lose `risk` plain steps keeps within `share` of the span."""
        return self.worst + risk <= share * self._span
