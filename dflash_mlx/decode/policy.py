"""Block policies: the block size of the next round, and what to launch early.

A policy sees finished rounds only. It must not know caches, models or text.
"""

from collections import deque
from typing import NamedTuple, Protocol

from dflash_mlx.decode.early_draft import EarlyDraftTrial
from dflash_mlx.decode.round import Round

_WINDOW = 32
"""Rounds without an accepted token after which `FixedBlock` stops drafting. A draft with a mean
acceptance of only 0.1 tokens per round fails this test with probability 0.9^32 = 3%."""

TIME_DRAFT_EVERY = 16
"""Every so many rounds the draft is timed separately. Timing adds one wait for the device, so
one round in 16 keeps the cost below 1% for a wait of up to 16% of a round."""


class TextProposal(NamedTuple):
    """Draft tokens that were found in text and not drafted by a model."""

    source: str
    """The name of the source in statistics."""
    tokens: tuple[int, ...]


class TextProposer(Protocol):
    """Offers draft tokens from text before the draft model is asked."""

    def next_text(self, max_block_size: int) -> TextProposal | None:
        """Return draft tokens for a block of at most `max_block_size`; None: use the draft."""


class BlockPolicy(Protocol):
    """Chooses the block size of each round of one request."""

    @property
    def disabled_reason(self) -> str | None:
        """Why drafting is disabled, or None while it is enabled."""

    @property
    def disabled_for_request(self) -> bool:
        """Whether drafting is disabled for the rest of the request."""

    def next_block_size(self, context_length: int) -> int:
        """Return the block size of the next round, at least 1, with `context_length` cached tokens.

        1 is a plain step.
        """

    def next_step_is_plain(self) -> bool:
        """Return whether a plain step now will be followed by another, whatever it shows."""

    def times_draft(self) -> bool:
        """Return whether the next round is to time its draft separately."""

    def launches_next_draft_early(self) -> bool:
        """Return whether to launch the next draft before the caller receives this round."""

    def observe(self, finished: Round) -> None:
        """Learn from a finished round."""


def launches_next_step_early(policy: BlockPolicy, block_size: int, max_tokens: int) -> bool:
    """Return whether the next plain step is launched before this round's token is read.

    It is when this round is a plain step (`block_size` 1), the policy plans another one, and the
    round may commit more than one token of the remaining `max_tokens`. The simulator applies the
    same rule.
    """
    return block_size == 1 and max_tokens > 1 and policy.next_step_is_plain()


class FixedBlock:
    """Uses one block size in every round, until the draft proves useless.

    Drafting is disabled for the rest of the request when the draft's logits are not finite, or
    when no draft token was accepted over a window of rounds. The text does not change.
    """

    def __init__(self, block_size: int, early_draft: EarlyDraftTrial | None = None) -> None:
        self.disabled_reason: str | None = None
        self._block_size = block_size
        self._early_draft = early_draft or EarlyDraftTrial()
        self._recent: deque[int] = deque(maxlen=_WINDOW)
        self._n_rounds = 0

    @property
    def disabled_for_request(self) -> bool:
        """Whether drafting is disabled; this policy never enables it again."""
        return self.disabled_reason is not None

    def next_block_size(self, context_length: int) -> int:
        """Return the block size of the next round."""
        return 1 if self.disabled_reason else self._block_size

    def next_step_is_plain(self) -> bool:
        """Return whether a plain step now will be followed by another."""
        return self._block_size == 1 or self.disabled_reason is not None

    def times_draft(self) -> bool:
        """Return whether the next round is to time its draft separately."""
        return not self.disabled_reason and self._n_rounds % TIME_DRAFT_EVERY == 0

    def launches_next_draft_early(self) -> bool:
        """Return whether to launch the next draft before the caller receives this round."""
        drafts = not self.next_step_is_plain()
        return self._early_draft.launches_early and drafts and not self.times_draft()

    def observe(self, finished: Round) -> None:
        """Disable drafting when the draft proves useless."""
        self._n_rounds += 1
        if not finished.drafted:
            return
        if finished.drafted + 1 == self._block_size and finished.draft_s is None:
            seconds = finished.seconds + finished.caller_s
            self._early_draft.observe(finished.launched_early, seconds)
        self._recent.append(finished.accepted)
        if not finished.draft_is_finite:
            self.disabled_reason = "the draft's logits are not finite"
        elif len(self._recent) == _WINDOW and not any(self._recent):
            self.disabled_reason = f"none of the draft's tokens was accepted in {_WINDOW} rounds"
