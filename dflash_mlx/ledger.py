"""The books: how far behind plain decoding an answer is, from wherever one begins to count.

Losses are in plain steps. The ledger is what makes "never slower" a property of the code and
not of its tuning: a round that could take the worst stretch beyond the allowance is not drafted.
"""

from collections import deque


class Ledger:
    """Losses over the last `span` tokens."""

    def __init__(self, span: int) -> None:
        self._span = span
        self._n_tokens = 0
        self._lost = 0.0
        self._lows: deque[tuple[int, float]] = deque([(0, 0.0)])
        """Places where counting could begin: (tokens, loss so far), both ascending."""

    def book(self, n_tokens: int, lost: float) -> None:
        """Enter a round that committed `n_tokens` and cost `lost` plain steps more than they."""
        self._n_tokens += n_tokens
        self._lost += lost
        while self._lows and self._lows[-1][1] >= self._lost:
            self._lows.pop()
        self._lows.append((self._n_tokens, self._lost))
        while self._lows[0][0] < self._n_tokens - self._span:
            self._lows.popleft()

    @property
    def worst(self) -> float:
        """Plain steps lost since the least favourable beginning within the span, at least 0."""
        return self._lost - self._lows[0][1]

    def allows(self, risk: float, share: float) -> bool:
        """Whether a round that may lose `risk` plain steps keeps within `share` of the span."""
        return self.worst + risk <= share * self._span
