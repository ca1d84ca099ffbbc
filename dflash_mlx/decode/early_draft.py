"""Whether drafting ahead makes rounds shorter here: tried, not assumed.

Launched before the caller gets a round's tokens, the next draft runs while text is made of
them. On a machine whose host and device share cores the same may cost more than it hides.
"""

from statistics import median

_SPELL = 8
"""Rounds in a row with and without, alternating, so that a drifting clock hits both alike."""

_ENOUGH = 24
"""Rounds of each kind that settle the question."""


class Overlap:
    """A trial over the first rounds of a pair, then its result. Lives as long as the pair."""

    def __init__(self) -> None:
        self._with: list[float] = []
        self._without: list[float] = []
        self._verdict: bool | None = None

    @property
    def on(self) -> bool:
        """Whether the next round's draft should be launched early."""
        if self._verdict is not None:
            return self._verdict
        return (len(self._with) + len(self._without)) // _SPELL % 2 == 1

    def observe(self, launched_early: bool, seconds: float) -> None:
        """Learn from a drafted round: its seconds, the caller's own time included.

        Rounds of different rows must be made comparable by the caller.
        """
        if self._verdict is not None:
            return
        (self._with if launched_early else self._without).append(seconds)
        if min(len(self._with), len(self._without)) >= _ENOUGH:
            self._verdict = median(self._with) < median(self._without)
