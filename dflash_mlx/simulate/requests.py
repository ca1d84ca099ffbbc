"""Several answers of one loaded pair: each decides for itself, and starts from the ones before."""

from collections.abc import Sequence

from dflash_mlx.controller.tuning import Tuning
from dflash_mlx.decode.round import Round


class Requests:
    """The policy of one request after another; they are `lengths` tokens long, the last goes on."""

    def __init__(self, tuning: Tuning, lengths: Sequence[int]) -> None:
        self._tuning = tuning
        self._lengths = list(lengths)
        self._policy = tuning.policy()
        self._n_tokens = 0

    @property
    def disabled_reason(self) -> str | None:
        """Why drafting has stopped, or None while it goes on."""
        return self._policy.disabled_reason

    @property
    def broken(self) -> bool:
        """Whether it has stopped for the rest of the request."""
        return self._policy.broken

    def rows(self, context: int) -> int:
        """Return the rows of the next round behind `context` rows."""
        return self._policy.rows(context)

    def next_step_is_plain(self) -> bool:
        """Whether a plain step now will be followed by another."""
        return self._policy.next_step_is_plain()

    def timed(self) -> bool:
        """Whether the next round should time its draft apart."""
        return self._policy.timed()

    def drafts_ahead(self) -> bool:
        """Whether to launch the next draft before the caller gets this round's tokens."""
        return self._policy.drafts_ahead()

    def observe(self, done: Round) -> None:
        """Learn from a finished round; begin the next request if this one is complete."""
        self._policy.observe(done)
        self._n_tokens += len(done.tokens)
        if self._lengths and self._n_tokens >= self._lengths[0]:
            self._n_tokens -= self._lengths.pop(0)
            self._tuning.learn(self._policy)
            self._policy = self._tuning.policy()
