"""Decides when a disabled controller drafts one round again, to see whether that pays now.

It must not know block sizes or the slowdown budget.
"""

# Sensitivity: change of the mean ratio to the best fixed block size, in percent ± standard error,
# for half and for one and a half times the constant (docs/log.md, 2026-12-01).

_SHORTEST_INTERVAL = 8
"""Plain tokens before the first probe, and the shortest interval between two. Sensitivity: -0.17 ±
0.23 and -0.23 ± 0.21."""

_INTERVAL_GROWTH = 2
"""Factor of the interval after a probe that lost. Sensitivity: -0.27 ± 0.19 and -0.09 ± 0.16."""


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
        self._interval = min(int(self._interval * _INTERVAL_GROWTH), limit)
        self._remaining = self._interval

    def postpone(self) -> None:
        """Wait the shortest interval, because a due probe is not allowed now."""
        self._remaining = _SHORTEST_INTERVAL

    def reset(self) -> None:
        """Return to the shortest interval, because drafting won.

        The next `back_off` doubles the interval first.
        """
        self.after_change = False
        self._interval = int(_SHORTEST_INTERVAL / _INTERVAL_GROWTH)

    def probe_now(self) -> None:
        """Make a probe due at once, because the text changed."""
        self.after_change = True
        self._interval = _SHORTEST_INTERVAL
        self._remaining = 0
