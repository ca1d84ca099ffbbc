"""The protocol of a text source: something that proposes draft tokens without a draft model.

It must not know when a proposal is worth a round; `decode/text_policy.py` decides that.
"""

from collections.abc import Sequence
from typing import Protocol


class TextSource(Protocol):
    """Proposes the continuation of a token sequence that grows round by round."""

    name: str
    """The name in statistics."""

    @property
    def match_length(self) -> int:
        """Number of last tokens that agree with the text of the proposal; 0 if none is found."""

    @property
    def next_match_length(self) -> int:
        """The largest `match_length` that is possible after one more token."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""

    def propose(self, n_tokens: int) -> list[int]:
        """Return up to `n_tokens` draft tokens that may follow the last token."""
