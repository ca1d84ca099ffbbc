"""Copies from the context: the text after an earlier occurrence of the last tokens.

It must not know which tokens are prompt and which are answer.
"""

from array import array
from collections.abc import Sequence

from dflash_mlx.proposals.suffix_automaton import SuffixAutomaton


class ContextCopy:
    """Proposes what followed the longest suffix of the context that occurred before."""

    name = "copy"

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = array("i")
        self._automaton = SuffixAutomaton()
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def is_prefix_of(self, tokens: Sequence[int]) -> bool:
        """Return whether `tokens` begins with the tokens of this context."""
        n_tokens = len(self._tokens)
        return n_tokens <= len(tokens) and self._tokens == array("i", tokens[:n_tokens])

    @property
    def match_length(self) -> int:
        """Length of the longest suffix of the context that also occurs earlier."""
        return self._automaton.repeated_length

    @property
    def next_match_length(self) -> int:
        """One more token lengthens the repeated suffix by one token at most."""
        return self._automaton.repeated_length + 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""
        for token in tokens:
            self._tokens.append(token)
            self._automaton.append(token)

    def propose(self, n_tokens: int) -> list[int]:
        """Return up to `n_tokens` tokens after the earlier occurrence.

        If the earlier occurrence overlaps the end of the context, the proposal continues the
        repetition with its own tokens.
        """
        if self.match_length == 0:
            return []
        start, length = self._automaton.repeated_end, len(self._tokens)
        proposal = list(self._tokens[start : start + n_tokens])
        while len(proposal) < n_tokens:
            proposal.append(proposal[start + len(proposal) - length])
        return proposal
