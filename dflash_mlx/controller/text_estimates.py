"""Estimates for rounds whose draft tokens come from text: acceptance by match length, and cost.

It must not know where the draft tokens come from, or when a round is made.
"""

from collections import defaultdict

_PRIOR_TRIES = 4.0
"""Weight of the prior in observations: a few observations of a text outweigh it."""

_MEMORY = 0.97
"""Factor of old counts per observation, so about the last 33 observations decide."""

_PRIOR_FIRST = (0.20, 0.54, 0.76, 0.88, 0.94, 0.98, 0.99)
_PRIOR_LATER = (0.69, 0.79, 0.87, 0.92, 0.95, 0.98, 0.99)
"""Rates before anything is observed, for match lengths 1, 2-3, 4-7, ... and 64 or more: copies
from the context in 269,280 tokens of SmolLM2-135M's own answers."""

_COST_WEIGHT = 0.25
"""Weight of a new observation of a cost, as costs drift with the context length and the clock."""

_PRIOR_SLOPE = 0.1
"""Cost of one more row in plain steps before anything is measured: a measured block of 8 takes
1.2 to 2 plain steps on Metal and 2 to 4 on a CPU, and the first rounds correct the estimate."""

_FIRST_BLOCK_SIZE = 4
_BLOCK_SIZE_GROWTH = 2
"""The first block size from text, and its growth over the largest measured one: a round of an
unmeasured size costs at most about twice what was measured."""


class TextAcceptance:
    """Conditional acceptance rates of a text source: of the first token, and of each later one."""

    def __init__(self) -> None:
        self._first = [[rate * _PRIOR_TRIES, _PRIOR_TRIES] for rate in _PRIOR_FIRST]
        self._later = [[rate * _PRIOR_TRIES, _PRIOR_TRIES] for rate in _PRIOR_LATER]

    def observe(self, match_length: int, n_right: int, n_compared: int) -> None:
        """Take a proposal of which `n_right` of `n_compared` tokens agreed, the rest unknown."""
        if n_compared == 0:
            return
        bucket = _bucket(match_length)
        _count(self._first[bucket], min(n_right, 1), 1)
        if n_right:
            wrong = n_right < n_compared
            _count(self._later[bucket], n_right - 1, n_right - 1 + wrong)

    def expected(self, match_length: int, n_tokens: int) -> float:
        """Return the expected number of accepted tokens of a proposal of `n_tokens`."""
        bucket = _bucket(match_length)
        first, later = _rate(self._first[bucket]), _rate(self._later[bucket])
        return float(first * (1 - later**n_tokens) / (1 - later))


def _bucket(match_length: int) -> int:
    return min(max(match_length, 1).bit_length(), len(_PRIOR_FIRST)) - 1


def _count(counts: list[float], hits: int, tries: int) -> None:
    if tries:
        counts[0] = counts[0] * _MEMORY + hits
        counts[1] = counts[1] * _MEMORY + tries


def _rate(counts: list[float]) -> float:
    # below 1: the sum over positions divides by 1 - rate
    return min(counts[0] / counts[1], 0.995)


class BlockCosts:
    """Seconds of a round without a draft forward, by block size; 1 is a plain step."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._n_observed: defaultdict[int, int] = defaultdict(int)

    def observe(self, block_size: int, seconds: float) -> None:
        """Take the duration of a round. The first of a block size may include compilation."""
        self._n_observed[block_size] += 1
        if self._n_observed[block_size] <= 2:
            self._seconds[block_size] = seconds
        else:
            old = self._seconds[block_size]
            self._seconds[block_size] = old + _COST_WEIGHT * (seconds - old)

    @property
    def largest_allowed(self) -> int:
        """The largest block size whose cost estimate is close to a measured one."""
        largest = max(self._seconds, default=1)
        return max(_FIRST_BLOCK_SIZE, _BLOCK_SIZE_GROWTH * largest)

    def seconds(self, block_size: int) -> float:
        """Return the expected duration of a round, in plain steps before one is measured."""
        known = sorted(self._seconds)
        if not known or known[0] > 1:
            # a plain step is unknown: relate it to the smallest known size by the prior
            scale = self._seconds[known[0]] / _prior_cost(known[0]) if known else 1.0
            known, table = [1, *known], {1: scale, **self._seconds}
        else:
            table = self._seconds
        below = max(size for size in known if size <= block_size)
        above = [size for size in known if size > block_size]
        if above:
            share = (block_size - below) / (above[0] - below)
            return table[below] + share * (table[above[0]] - table[below])
        slope = _PRIOR_SLOPE * table[1]
        if below > 1:
            slope = max(0.0, (table[below] - table[1]) / (below - 1))
        return table[below] + slope * (block_size - below)


def _prior_cost(block_size: int) -> float:
    return 1 + _PRIOR_SLOPE * (block_size - 1)
