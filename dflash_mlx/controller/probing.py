"""Decides when a disabled controller drafts one round again, and with which block size.

It must not know the slowdown budget.
"""

import math
from collections.abc import Sequence

from dflash_mlx.controller.acceptance import AcceptanceEstimate, expected_tokens

_SHORTEST_INTERVAL = 8
"""Plain tokens before the first probe, and the shortest interval between two."""

_INTERVAL_GROWTH = 2
"""Factor of the interval after a probe that lost."""

_OPTIMISTIC_RATES = (0.7, 0.85, 0.96)
"""First-position acceptance rates that a probe may assume, the lowest first."""

_MIN_PROBE_COST = 0.2
"""Plain steps that any probe costs at least: the step after it cannot be launched early."""

_FAST_STEP, _SLOW_STEP = 1 / 12, 1 / 96
"""Step sizes of the recent and of the long average of the target's confidence."""

_WARM_UP_TOKENS = 48
"""Tokens before the long average is compared with the recent one."""

_CHANGE_ERRORS = 3.0
"""Standard errors between the two averages that count as a change."""

_INITIAL_VARIANCE = 0.04
"""Variance of a token's confidence before any token (a standard deviation of 0.2)."""

_MIN_ERROR = 0.01
"""Smallest standard error: text of constant confidence must not make rounding a change."""


def probe_cost(risk: float) -> float:
    """Return the plain steps that a probe may cost whose round may lose `risk` of them."""
    return max(risk, _MIN_PROBE_COST)


def probe_block_size(
    estimate: AcceptanceEstimate, costs: Sequence[float], threshold: float
) -> tuple[int, bool]:
    """Return the block size with the highest gain for its cost, and whether it could win.

    `costs` are in plain steps, for block sizes 1, 2, ...; a speedup above `threshold` wins. The
    first acceptance rate is the lowest optimistic one at which any block size wins, and the
    others follow from it as in earlier requests.
    """
    block_sizes = range(2, len(costs) + 1)
    for rate in _OPTIMISTIC_RATES:
        tokens = expected_tokens(estimate.rates_from(rate))
        speedups = {size: tokens[size - 1] / costs[size - 1] for size in block_sizes}
        value = {
            size: (speedup - 1) / probe_cost(costs[size - 1] - 1)
            for size, speedup in speedups.items()
            if speedup > threshold
        }
        if value:
            return max(value, key=value.__getitem__), True
    return max(block_sizes, key=speedups.__getitem__), False


class ConfidenceChange:
    """Detects that the target's confidence has moved to another level and stays there.

    The confidence is computed anyway, and it moves when code follows prose or an answer follows
    its reasoning.
    """

    def __init__(self) -> None:
        self._n_tokens = 0
        self._recent = self._long = 0.0
        self._variance = _INITIAL_VARIANCE

    def observe(self, confidence: float) -> bool:
        """Update with the confidence (0 to 1) of one token; return whether the text changed."""
        self._n_tokens += 1
        slow = max(1 / self._n_tokens, _SLOW_STEP)
        fast = max(1 / self._n_tokens, _FAST_STEP)
        deviation = confidence - self._long
        self._long += slow * deviation
        self._variance += slow * (deviation * deviation - self._variance)
        self._recent += fast * (confidence - self._recent)
        if self._n_tokens < _WARM_UP_TOKENS:
            return False
        # an exponential average of step size a has a variance of about a / 2 of one sample's
        error = math.sqrt(self._variance * _FAST_STEP / 2)
        if abs(self._recent - self._long) <= _CHANGE_ERRORS * max(error, _MIN_ERROR):
            return False
        self._n_tokens = 1
        self._long = self._recent
        return True


class ProbeSchedule:
    """The interval to the next probe, in plain tokens. It doubles while drafting loses."""

    def __init__(self) -> None:
        self._interval = _SHORTEST_INTERVAL
        self._remaining = 0
        self.after_change = False
        """Whether the next probe is due because the text changed."""

    @property
    def due(self) -> bool:
        """Whether the next round may be a probe."""
        return self._remaining <= 0

    @property
    def remaining(self) -> int:
        """Plain tokens until the next probe."""
        return self._remaining

    def advance(self, n_tokens: int) -> None:
        """Count plain tokens."""
        self._remaining -= n_tokens

    def back_off(self, longest: int) -> None:
        """Double the interval, to at most `longest` tokens, because drafting lost."""
        self.after_change = False
        limit = max(longest, _SHORTEST_INTERVAL)
        self._interval = min(self._interval * _INTERVAL_GROWTH, limit)
        self._remaining = self._interval

    def postpone(self) -> None:
        """Wait the shortest interval, because a due probe is not allowed now."""
        self._remaining = _SHORTEST_INTERVAL

    def reset(self) -> None:
        """Return to the shortest interval, because drafting won.

        The next `back_off` doubles the interval first.
        """
        self.after_change = False
        self._interval = _SHORTEST_INTERVAL // _INTERVAL_GROWTH

    def probe_now(self) -> None:
        """Make a probe due at once, because the text changed."""
        self.after_change = True
        self._interval = _SHORTEST_INTERVAL
        self._remaining = 0
