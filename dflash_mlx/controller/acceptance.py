"""How many draft tokens are accepted: estimated per position, older rounds forgotten.

Letters: B rows of a block, so B - 1 draft tokens. The *hazard* of position k is the share of
rounds in which draft token k was accepted, of those that accepted every one before it and
drafted it. It is learned from blocks of any width, and gives the tokens of any width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

_FORGET = 0.97
"""Weight that a round's evidence keeps with each later round: a memory of about 33 rounds."""

_LONG_RUN = 0.02
"""Weight of a round in the long run: what the first position falls back on without evidence."""

_BORROWED = 2.0
"""Rounds of evidence that a position's neighbour (or a parent's estimate) counts for."""

_UNKNOWN = 0.6
"""The first hazard where nothing was seen."""

_KEPT = 0.9
"""Weight that a request's evidence keeps with each later request."""

_WORTH = 8.0
"""Rounds that earlier requests count for in a new one: a few rounds outweigh them."""


@dataclass(frozen=True)
class Start:
    """What earlier requests of a pair saw, the older the less.

    `tries[k]` rounds drafted token k and accepted all before it; `hits[k]` accepted it too.
    """

    tries: tuple[float, ...] = ()
    hits: tuple[float, ...] = ()

    @cached_property
    def hazards(self) -> tuple[float, ...]:
        """The hazards by position; one that was hardly seen is taken to be as the one before."""
        found, lean = [], _UNKNOWN
        for tries, hits in zip(self.tries, self.hits, strict=True):
            found.append(lean := _leaning(lean, tries, hits))
        return tuple(found)

    def joined(self, request: "Start") -> "Start":
        """Return this with what one more request saw."""
        return Start(
            _faded_sum(self.tries, request.tries),
            _faded_sum(self.hits, request.hits),
        )


class Acceptance:
    """Hazards of up to `n_positions` draft tokens.

    A position without evidence is taken to be like the one before it, the first as it was in the
    long run, or a guess to begin with; so a width never tried looks as good as the last one
    that was tried, and gets tried. Where a start from elsewhere shows that odds fall from one
    position to the next, they are taken to fall so here. With a `parent` (the same text seen
    without a distinction made here) positions lean on the parent instead.
    """

    def __init__(self, n_positions: int, parent: "Acceptance | None" = None) -> None:
        self._first = _UNKNOWN
        self._parent = parent
        self._tries = [0.0] * n_positions
        self._hits = [0.0] * n_positions
        self._all_tries = [0.0] * n_positions
        self._all_hits = [0.0] * n_positions
        self._falls = [1.0] * n_positions  # odds of a position, in those of the one before

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        """Learn from a round that drafted and accepted so many tokens."""
        self.fade(_FORGET)
        if n_drafted and self._parent is None:
            self._first += _LONG_RUN * ((n_accepted > 0) - self._first)
        for position in range(min(n_accepted + 1, n_drafted, len(self._tries))):
            self._tries[position] += 1
            self._hits[position] += position < n_accepted
            self._all_tries[position] += 1
            self._all_hits[position] += position < n_accepted

    def seen(self) -> Start:
        """Return all that was observed, nothing forgotten."""
        return Start(tuple(self._all_tries), tuple(self._all_hits))

    def fade(self, share: float) -> None:
        """Keep only `share` of the weight of all evidence."""
        self._tries = [tries * share for tries in self._tries]
        self._hits = [hits * share for hits in self._hits]

    def age(self, n_rounds: float) -> None:
        """Let all evidence count for at most `n_rounds` rounds: the text may have changed."""
        if self._tries and self._tries[0] > n_rounds:
            self.fade(n_rounds / self._tries[0])

    def hazards(self) -> list[float]:
        """Return the estimated hazard of every position."""
        lean, leans = self._first, self._parent.hazards() if self._parent else None
        found = []
        for position, tries in enumerate(self._tries):
            lean = leans[position] if leans else _times(lean, self._falls[position])
            found.append(lean := _leaning(lean, tries, self._hits[position]))
        return found

    def hopeful(self, errors: float) -> list[float]:
        """Return the hazards `errors` standard errors up: what they may well be."""
        return [
            min(hazard + errors * math.sqrt(hazard * (1 - hazard) / (tries + _BORROWED)), 1.0)
            for hazard, tries in zip(self.hazards(), self._tries, strict=True)
        ]

    def hoped(self, first: float) -> list[float]:
        """Return the hazards of a text whose first is `first` and falls as elsewhere."""
        found = [first]
        for fall in self._falls[1:]:
            found.append(_times(found[-1], fall))
        return found

    def begin(self, start: Start) -> None:
        """Take what was learned elsewhere as evidence, and how odds fall for good."""
        hazards, alive = start.hazards, _WORTH
        self._first = hazards[0] if hazards else self._first
        for position, hazard in enumerate(hazards[: len(self._tries)]):
            self._tries[position] = alive
            self._hits[position] = alive * hazard
            alive *= hazard
        for position in range(1, min(len(hazards), len(self._falls))):
            fall = _odds(hazards[position]) / _odds(hazards[position - 1])
            self._falls[position] = min(fall, 1.0)


def _leaning(lean: float, tries: float, hits: float) -> float:
    """Return the hazard of a position, which without evidence is `lean`."""
    return (hits + _BORROWED * lean) / (tries + _BORROWED)


def _faded_sum(old: Sequence[float], new: Sequence[float]) -> tuple[float, ...]:
    return tuple(_KEPT * a + b for a, b in zip_longest(old, new, fillvalue=0.0))


def _odds(chance: float) -> float:
    chance = min(max(chance, 0.01), 0.99)
    return chance / (1 - chance)


def _times(chance: float, factor: float) -> float:
    """Return the chance whose odds are `factor` times those of `chance`."""
    return chance * factor / (1 - chance + chance * factor)


def expected_tokens(hazards: Sequence[float]) -> list[float]:
    """Return the tokens a round commits at 1, 2, ... len(hazards) + 1 rows."""
    tokens, alive = [1.0], 1.0
    for hazard in hazards:
        alive *= hazard
        tokens.append(tokens[-1] + alive)
    return tokens
