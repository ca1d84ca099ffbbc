"""Acceptance estimates by the target's confidence, and the detection of changes of text.

It must not know what a round costs.
"""

import math

from dflash_mlx.controller.acceptance import AcceptanceCounts, AcceptanceEstimate, expected_tokens
from dflash_mlx.decode.round import Round

# Sensitivity: change of the mean ratio to the best fixed block size, in percent ± standard error,
# for half and for one and a half times the constant (docs/log.md, 2026-12-01).

_CONFIDENCE_BOUNDS = (0.55, 0.9)
"""Confidences of the anchor that separate the three acceptance estimates. Sensitivity of the first:
-0.21 ± 0.19 and -0.08 ± 0.13. Sensitivity of the second: -0.03 ± 0.18 and -0.14 ± 0.16."""

_PLAIN_STEP_DISCOUNT = 0.95
"""Weight that the evidence for plain steps at one confidence keeps per step: it gets retried.
Sensitivity: -0.11 ± 0.13 and -0.00 ± 0.07. Without it (1): -0.61 ± 0.52."""

_SHORTFALL_FRACTION = 0.75
"""Share of the expected tokens below which a round counts as a shortfall. Sensitivity: -0.13 ± 0.08
and -0.03 ± 0.21."""

_SHORTFALL_ROUNDS = 3.0
"""Rounds' worth of missing tokens after which old evidence is discounted. Sensitivity: +0.12 ± 0.16
and -0.17 ± 0.11. Without discounting: -0.11 ± 0.15."""

_CHANGE_ROUNDS = 6.0
"""Rounds that old evidence counts for after a change of text. Sensitivity: -0.01 ± 0.15 and -0.12 ±
0.13. With 3, as before a probe: +0.12 ± 0.14, but 5 instead of 4 of 223 scenarios miss the second
goal."""

_FAST_STEP, _SLOW_STEP = 1 / 12, 1 / 96
"""Step sizes of the recent and of the long average of the target's confidence. Sensitivity of the
first: -0.18 ± 0.18 and -0.42 ± 0.20. Sensitivity of the second: +0.02 ± 0.14 and -0.07 ± 0.10."""

_WARM_UP_TOKENS = round(4 / _FAST_STEP)
"""Tokens before the two averages are compared: four time constants of the recent one, which then
has 98% of its weight."""

_CHANGE_ERRORS = 3.0
"""Standard errors between the two averages that count as a change. Sensitivity: -0.29 ± 0.18 and
-0.10 ± 0.14. Without detection: -0.47 ± 0.44."""

_MIN_ERROR = 2**-8
"""Smallest standard error: the spacing of bfloat16 values below 1. Without it, text of constant
confidence makes a rounding error a change."""


class AcceptanceByConfidence:
    """An overall estimate, and one for each level of the target's confidence in the anchor."""

    def __init__(self, n_positions: int, counts: AcceptanceCounts | None) -> None:
        self.overall = AcceptanceEstimate(n_positions)
        if counts is not None:
            self.overall.set_prior(counts)
        self._levels = [
            AcceptanceEstimate(n_positions, parent=self.overall)
            for _ in range(len(_CONFIDENCE_BOUNDS) + 1)
        ]
        self._level = 1
        self._shortfall = 0.0  # expected tokens that were not accepted recently
        self._change = ConfidenceChange()

    @property
    def here(self) -> AcceptanceEstimate:
        """The estimate at the confidence of the last anchor."""
        return self._levels[self._level]

    def observe(self, done: Round) -> None:
        """Update from a drafted round; discount old evidence after too many missing tokens."""
        expected = expected_tokens(self.overall.rates())[done.drafted]
        self.overall.observe(done.n_counted, done.accepted)
        self.here.observe(done.n_counted, done.accepted)
        missing = _SHORTFALL_FRACTION * expected - len(done.tokens)
        self._shortfall = max(0.0, self._shortfall + missing)
        if self._shortfall > _SHORTFALL_ROUNDS * expected:
            self.limit_evidence(_CHANGE_ROUNDS)

    def discount_here(self) -> None:
        """Discount the evidence that chose a plain step at this confidence."""
        self.here.discount(_PLAIN_STEP_DISCOUNT)

    def limit_evidence(self, n_rounds: float) -> None:
        """Discount all evidence to at most `n_rounds` rounds, because the text may have changed."""
        self._shortfall = 0.0
        for estimate in (self.overall, *self._levels):
            estimate.limit_evidence(n_rounds)

    def forget_text(self) -> None:
        """Discount the overall evidence after a change of text while drafting is disabled."""
        self.overall.limit_evidence(_CHANGE_ROUNDS)

    def text_changes(self, confidence: tuple[float, ...]) -> int:
        """Update with a round's confidences; return how many of them show a change of text."""
        changes = sum(self._change.observe(each) for each in confidence)
        if confidence:
            self._level = sum(confidence[-1] >= bound for bound in _CONFIDENCE_BOUNDS)
        return changes


class ConfidenceChange:
    """Detects that the target's confidence has moved to another level and stays there.

    The confidence is computed anyway, and it moves when code follows prose or an answer follows
    its reasoning.
    """

    def __init__(self) -> None:
        self._n_tokens = 0
        self._recent = self._long = 0.0
        self._variance = 0.0  # the first token replaces it

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
