"""A trial that decides whether launching the next draft early makes rounds shorter here.

A draft launched before the caller receives a round's tokens runs while the caller makes text of
them. Where host and device share cores, this can cost more time than it hides.
"""

from statistics import median

_ROUNDS_PER_PHASE = 8
"""Consecutive rounds with and without early launch. Short alternating phases spread clock drift
over both kinds; phases of one round would compare rounds that influence each other."""

_ROUNDS_OF_EACH = 24
"""Rounds of each kind before the decision: three phases, so one disturbed phase cannot move the
median."""


class EarlyDraftTrial:
    """Alternates between both ways over the first rounds, then keeps the faster one.

    One trial lives as long as its pair is loaded.
    """

    def __init__(self) -> None:
        self._early_s: list[float] = []
        self._late_s: list[float] = []
        self._result: bool | None = None

    @property
    def launches_early(self) -> bool:
        """Whether the next round's draft is to be launched early."""
        if self._result is not None:
            return self._result
        return (len(self._early_s) + len(self._late_s)) // _ROUNDS_PER_PHASE % 2 == 1

    def observe(self, launched_early: bool, seconds: float) -> None:
        """Take the duration of a drafted round in seconds, the caller's time included.

        The caller passes only rounds of comparable cost.
        """
        if self._result is not None:
            return
        (self._early_s if launched_early else self._late_s).append(seconds)
        if min(len(self._early_s), len(self._late_s)) >= _ROUNDS_OF_EACH:
            self._result = median(self._early_s) < median(self._late_s)
