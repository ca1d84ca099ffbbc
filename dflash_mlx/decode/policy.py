"""How many rows the next round gets.

A policy sees finished rounds and answers with a number of rows, anchor included; 1 is a plain
step. It lives as long as one request.
"""

from collections import deque
from typing import Protocol

from dflash_mlx.decode.early_draft import Overlap
from dflash_mlx.decode.round import Round

_WINDOW = 32
"""Rounds without one accepted token after which a draft is worth nothing here."""

TIMED_EVERY = 16
"""One round in so many times the draft apart, which costs one more wait for the device."""


class BlockPolicy(Protocol):
    """Chooses the rows of each round."""

    @property
    def disabled_reason(self) -> str | None:
        """Why drafting has stopped, or None while it goes on."""

    @property
    def broken(self) -> bool:
        """Whether it has stopped for the rest of the request."""

    def rows(self, context: int) -> int:
        """Return the rows of the next round, at least 1, behind `context` rows."""

    def next_step_is_plain(self) -> bool:
        """Whether a plain step now will be followed by another, whatever it shows."""

    def timed(self) -> bool:
        """Whether the next round should time its draft apart."""

    def drafts_ahead(self) -> bool:
        """Whether to launch the next draft before the caller gets this round's tokens."""

    def observe(self, done: Round) -> None:
        """Learn from a finished round."""


class FixedBlock:
    """The same rows every round, until the draft proves broken.

    A draft whose logits are not finite, or of which nothing was accepted over a window of
    rounds, is stopped for the rest of the request: the text stays the same, only the time spent
    on drafting is saved.
    """

    def __init__(self, n_rows: int, overlap: Overlap | None = None) -> None:
        self.disabled_reason: str | None = None
        self._rows = n_rows
        self._overlap = overlap or Overlap()
        self._recent: deque[int] = deque(maxlen=_WINDOW)
        self._n_rounds = 0

    @property
    def broken(self) -> bool:
        """Whether drafting has stopped for the rest of the request: it does so for good."""
        return self.disabled_reason is not None

    def rows(self, context: int) -> int:
        """Return the rows of the next round."""
        return 1 if self.disabled_reason else self._rows

    def next_step_is_plain(self) -> bool:
        """Whether a plain step now will be followed by another."""
        return self._rows == 1 or self.disabled_reason is not None

    def timed(self) -> bool:
        """Whether the next round should time its draft apart."""
        return not self.disabled_reason and self._n_rounds % TIMED_EVERY == 0

    def drafts_ahead(self) -> bool:
        """Whether to launch the next draft before the caller gets this round's tokens."""
        return self._overlap.on and not self.next_step_is_plain() and not self.timed()

    def observe(self, done: Round) -> None:
        """Stop drafting when the draft is broken."""
        self._n_rounds += 1
        if not done.drafted:
            return
        if done.drafted + 1 == self._rows and done.draft_s is None:
            self._overlap.observe(done.launched_early, done.seconds + done.caller_s)
        self._recent.append(done.accepted)
        if not done.healthy:
            self.disabled_reason = "the draft's logits are not finite"
        elif len(self._recent) == _WINDOW and not any(self._recent):
            self.disabled_reason = f"none of the draft's tokens was accepted in {_WINDOW} rounds"
