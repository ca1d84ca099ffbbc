"""Estimates how many draft tokens the target accepts, by position, with exponential forgetting.

It must not know what a round costs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

# Sensitivity: change of the mean ratio to the best fixed block size, in percent ± standard error,
# for half and for one and a half times the constant (docs/log.md, 2026-12-01).

_ROUND_DISCOUNT = 0.97
"""Weight that the evidence of one round keeps with each later round (a memory of 33 rounds).
Sensitivity: -0.15 ± 0.20 and -0.19 ± 0.21. Without forgetting: -0.90 ± 0.34."""

_FIRST_RATE_STEP = 0.02
"""Step size of the slow average (50 rounds) that the first position is shrunk towards. Sensitivity:
+0.07 ± 0.20 and -0.02 ± 0.12. Without it (0), a draft that is never accepted looks good again at
every probe: 282 probes in 4,000 tokens instead of 218."""

_PRIOR_ROUNDS = 2.0
"""Pseudo-count of the shrinkage target: the neighbouring position, or the parent estimate.
Sensitivity: -0.53 ± 0.21 and -0.10 ± 0.15."""

_DEFAULT_RATE = 0.6
"""Conditional acceptance rate of the first position before any round. Sensitivity: -0.15 ± 0.19 and
-0.17 ± 0.18. It is the middle of the first rates of the simulated texts (0.02 to 0.97)."""

_REQUEST_DISCOUNT = 0.9
"""Weight that the evidence of one request keeps with each later request (a memory of ten).
Sensitivity over 12 orders of the recorded answers: -0.15 ± 0.25 and +0.01 ± 0.28; any memory of
several requests will do."""

_HISTORY_ROUNDS = 8.0
"""Pseudo-count of earlier requests at the start of a new one. Sensitivity over 12 orders of the
recorded answers: -0.32 ± 0.36 and -0.63 ± 0.54; without history: -0.57 ± 0.29."""

_MIN_RATE = 0.01
"""Rates are clamped to 0.01..0.99 before they become odds: odds of 0 and 1 are not finite."""


@dataclass(frozen=True)
class AcceptanceCounts:
    """Discounted counts by position, over earlier requests of a pair.

    `n_drafted[k]` counts the rounds that drafted token k and accepted every token before it;
    `n_accepted[k]` counts those that accepted token k too.
    """

    n_drafted: tuple[float, ...] = ()
    n_accepted: tuple[float, ...] = ()

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """The conditional acceptance rate of each position, shrunk towards the one before it."""
        rates, prior = [], _DEFAULT_RATE
        for n_drafted, n_accepted in zip(self.n_drafted, self.n_accepted, strict=True):
            rates.append(prior := _posterior_mean(prior, n_drafted, n_accepted))
        return tuple(rates)

    def with_request(self, request: "AcceptanceCounts") -> "AcceptanceCounts":
        """Return these counts, discounted once, plus the counts of one more request."""
        return AcceptanceCounts(
            _discounted_sum(self.n_drafted, request.n_drafted),
            _discounted_sum(self.n_accepted, request.n_accepted),
        )


class AcceptanceEstimate:
    """Conditional acceptance rates of up to `n_positions` draft tokens.

    The rate of position k is P(token k is accepted given that all before it were). It does not
    depend on the block size, so rounds of any block size update it. A position without evidence
    takes the rate of the position before it: an untried block size then looks as good as the
    largest one tried, and gets tried. With counts of earlier requests, the odds fall from one
    position to the next as they did there. With a `parent` (an estimate over more rounds) every
    position is shrunk towards the parent's rate instead.
    """

    def __init__(self, n_positions: int, parent: "AcceptanceEstimate | None" = None) -> None:
        self._first_rate = _DEFAULT_RATE
        self._parent = parent
        self._n_drafted = [0.0] * n_positions
        self._n_accepted = [0.0] * n_positions
        self._total_drafted = [0.0] * n_positions
        self._total_accepted = [0.0] * n_positions
        self._odds_ratios = [1.0] * n_positions  # odds of a position over those of the one before

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        """Update from a round that drafted and accepted this many tokens."""
        self.discount(_ROUND_DISCOUNT)
        if n_drafted and self._parent is None:
            self._first_rate += _FIRST_RATE_STEP * ((n_accepted > 0) - self._first_rate)
        for position in range(min(n_accepted + 1, n_drafted, len(self._n_drafted))):
            self._n_drafted[position] += 1
            self._n_accepted[position] += position < n_accepted
            self._total_drafted[position] += 1
            self._total_accepted[position] += position < n_accepted

    def totals(self) -> AcceptanceCounts:
        """Return the counts of all observed rounds, without forgetting."""
        return AcceptanceCounts(tuple(self._total_drafted), tuple(self._total_accepted))

    def discount(self, weight: float) -> None:
        """Multiply the weight of all evidence by `weight`."""
        self._n_drafted = [count * weight for count in self._n_drafted]
        self._n_accepted = [count * weight for count in self._n_accepted]

    def limit_evidence(self, n_rounds: float) -> None:
        """Discount all evidence to at most `n_rounds` rounds, because the text may have changed."""
        if self._n_drafted and self._n_drafted[0] > n_rounds:
            self.discount(n_rounds / self._n_drafted[0])

    def rates(self) -> list[float]:
        """Return the conditional acceptance rate of every position."""
        prior, priors = self._first_rate, self._parent.rates() if self._parent else None
        rates = []
        for position, n_drafted in enumerate(self._n_drafted):
            ratio = self._odds_ratios[position]
            prior = priors[position] if priors else _scale_odds(prior, ratio)
            rates.append(prior := _posterior_mean(prior, n_drafted, self._n_accepted[position]))
        return rates

    def upper_rates(self, n_errors: float) -> list[float]:
        """Return every rate plus `n_errors` standard errors, at most 1."""
        return [
            min(rate + n_errors * math.sqrt(rate * (1 - rate) / (n_drafted + _PRIOR_ROUNDS)), 1.0)
            for rate, n_drafted in zip(self.rates(), self._n_drafted, strict=True)
        ]

    def rates_from(self, first: float) -> list[float]:
        """Return the rates if the first were `first` and the odds fell as in earlier requests."""
        rates = [first]
        for ratio in self._odds_ratios[1:]:
            rates.append(_scale_odds(rates[-1], ratio))
        return rates

    def set_prior(self, counts: AcceptanceCounts) -> None:
        """Start from counts of earlier requests: a few rounds of evidence, and the odds ratios."""
        rates, reached = counts.rates, _HISTORY_ROUNDS
        self._first_rate = rates[0] if rates else self._first_rate
        for position, rate in enumerate(rates[: len(self._n_drafted)]):
            self._n_drafted[position] = reached
            self._n_accepted[position] = reached * rate
            reached *= rate
        for position in range(1, min(len(rates), len(self._odds_ratios))):
            ratio = _odds(rates[position]) / _odds(rates[position - 1])
            self._odds_ratios[position] = min(ratio, 1.0)


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """Return the expected tokens of a round for block sizes 1, 2, ... len(rates) + 1.

    The bonus token counts: block size 1 commits one token.
    """
    tokens, reached = [1.0], 1.0
    for rate in rates:
        reached *= rate
        tokens.append(tokens[-1] + reached)
    return tokens


def _posterior_mean(prior: float, n_drafted: float, n_accepted: float) -> float:
    """Return the mean of a beta posterior whose prior has mean `prior`."""
    return (n_accepted + _PRIOR_ROUNDS * prior) / (n_drafted + _PRIOR_ROUNDS)


def _discounted_sum(old: Sequence[float], new: Sequence[float]) -> tuple[float, ...]:
    return tuple(_REQUEST_DISCOUNT * a + b for a, b in zip_longest(old, new, fillvalue=0.0))


def _odds(rate: float) -> float:
    rate = min(max(rate, _MIN_RATE), 1 - _MIN_RATE)
    return rate / (1 - rate)


def _scale_odds(rate: float, factor: float) -> float:
    """Return the probability whose odds are `factor` times those of `rate`."""
    return rate * factor / (1 - rate + rate * factor)
