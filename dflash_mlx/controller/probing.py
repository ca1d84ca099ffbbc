"""When a parked answer tries its draft again.

Probes come at doubling distances while drafting loses, and at once when the text changes: the
target's own confidence, which costs nothing to look at, moves when code follows prose or an
answer follows its thoughts.
"""

import math
from collections.abc import Sequence

from dflash_mlx.controller.acceptance import Acceptance, expected_tokens

_FIRST = 8
"""Plain tokens before the first probe, and the shortest distance between two."""

_HOPES = (0.7, 0.85, 0.96)
"""Hazards of texts that a probe may hope for, the modest first: the wider a probe, the dearer."""

_LEAST_STAKE = 0.2
"""Plain steps that any probe may cost: the step behind it cannot be launched early."""

_FAST, _SLOW = 1 / 12, 1 / 96
"""Weights of a new token in the recent and in the settled picture of the text."""

_SETTLED = 48
"""Plain tokens before the settled picture is one."""

_SURPRISE = 3.0
"""Standard errors between the two pictures that make a change."""


def stake(risk: float) -> float:
    """Return the plain steps that a probe puts at stake whose round may lose `risk` of them."""
    return max(risk, _LEAST_STAKE)


def probe_width(known: Acceptance, costs: Sequence[float], edge: float) -> tuple[int, bool]:
    """Return the width that would win most for what it stakes, and whether it would win.

    `costs` are those of 1, 2, ... rows in plain steps, and a win is a speed above `edge`. The
    text is taken to draft well, as modestly as makes any width win, and to fall off along a
    block as is `known`.
    """
    widths = range(2, len(costs) + 1)
    for hope in _HOPES:
        tokens = expected_tokens(known.hoped(hope))
        gains = {width: tokens[width - 1] / costs[width - 1] for width in widths}
        worth = {
            width: (gain - 1) / stake(costs[width - 1] - 1)
            for width, gain in gains.items()
            if gain > edge
        }
        if worth:
            return max(worth, key=worth.__getitem__), True
    return max(widths, key=gains.__getitem__), False


class TextChange:
    """Notices that the target's confidence has moved to another level and stays there."""

    def __init__(self) -> None:
        self._n_tokens = 0
        self._recent = self._settled = 0.0
        self._spread = 0.04  # variance of a token's confidence

    def observe(self, confidence: float) -> bool:
        """Take the confidence (0 to 1) of one token; return whether the text has changed."""
        self._n_tokens += 1
        slow = max(1 / self._n_tokens, _SLOW)
        fast = max(1 / self._n_tokens, _FAST)
        off = confidence - self._settled
        self._settled += slow * off
        self._spread += slow * (off * off - self._spread)
        self._recent += fast * (confidence - self._recent)
        if self._n_tokens < _SETTLED:
            return False
        error = math.sqrt(self._spread * _FAST / 2)
        if abs(self._recent - self._settled) <= _SURPRISE * max(error, 0.01):
            return False
        self._n_tokens = 1
        self._settled = self._recent
        return True


class Probing:
    """The distance to the next probe, in plain tokens."""

    def __init__(self) -> None:
        self._interval = _FIRST
        self._left = 0
        self.hurried = False
        """Whether the next probe is due to a change of the text."""

    @property
    def due(self) -> bool:
        """Whether the next round may be a probe."""
        return self._left <= 0

    @property
    def left(self) -> int:
        """Plain tokens until the next probe."""
        return self._left

    def step(self, n_tokens: int) -> None:
        """Count plain tokens."""
        self._left -= n_tokens

    def lost(self, longest: int) -> None:
        """Wait twice as long as before, at most `longest` tokens: drafting has lost."""
        self.hurried = False
        self._interval = min(self._interval * 2, max(longest, _FIRST))
        self._left = self._interval

    def postpone(self) -> None:
        """Ask again after the shortest distance: a probe that was due cannot be made now."""
        self._left = _FIRST

    def won(self) -> None:
        """Begin with the shortest distance again: drafting has paid."""
        self.hurried = False
        self._interval = _FIRST // 2

    def hurry(self) -> None:
        """Probe now: the text has changed."""
        self.hurried = True
        self._interval = _FIRST
        self._left = 0
