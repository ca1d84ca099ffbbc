"""Several requests of one loaded pair in a row, each of which learns from the ones before.

It must not know where the tokens come from.
"""

from collections.abc import Sequence

from dflash_mlx.controller.state import ControllerState
from dflash_mlx.decode.round import Round


class Requests:
    """A policy that starts a new request after `lengths` tokens; the last one has no end."""

    def __init__(self, state: ControllerState, lengths: Sequence[int]) -> None:
        self._state = state
        self._lengths = list(lengths)
        self._policy = state.policy()
        self._n_tokens = 0

    @property
    def disabled_reason(self) -> str | None:
        """Why drafting is disabled, or None."""
        return self._policy.disabled_reason

    @property
    def disabled_for_request(self) -> bool:
        """Whether drafting is disabled for the rest of the request."""
        return self._policy.disabled_for_request

    def next_block_size(self, context_length: int) -> int:
        """Return the block size of the next round after `context_length` tokens."""
        return self._policy.next_block_size(context_length)

    def next_step_is_plain(self) -> bool:
        """Return whether another plain step follows a plain step now."""
        return self._policy.next_step_is_plain()

    def times_draft(self) -> bool:
        """Return whether the next round times its draft separately."""
        return self._policy.times_draft()

    def launches_next_draft_early(self) -> bool:
        """Return whether the next draft is launched before the caller gets this round's tokens."""
        return self._policy.launches_next_draft_early()

    def observe(self, done: Round) -> None:
        """Update from a finished round; start the next request if this one is complete."""
        self._policy.observe(done)
        self._n_tokens += len(done.tokens)
        if self._lengths and self._n_tokens >= self._lengths[0]:
            self._n_tokens -= self._lengths.pop(0)
            self._state.learn(self._policy)
            self._policy = self._state.policy()
