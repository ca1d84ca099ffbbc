"""Draft tokens from text for the requests of one pair, and what these requests observed.

It must not know KV caches, threads or how a policy decides.
"""

from collections.abc import Sequence

from dflash_mlx.controller.text_policy import TextPolicy, TextStatistics
from dflash_mlx.decode.policy import BlockPolicy
from dflash_mlx.proposals.context_copy import ContextCopy
from dflash_mlx.proposals.prediction import Prediction
from dflash_mlx.proposals.source import TextSource

_MAX_INDEXES = 2
"""Indexes of finished answers: the next turn of a conversation extends one in place of indexing
its whole context, which takes 8 us per token. An index of 100,000 tokens takes 11 MB."""


class TextProposals:
    """Makes the text policies of a pair's requests. Used on the worker thread only."""

    def __init__(self) -> None:
        self._statistics = TextStatistics()
        self._indexes: list[ContextCopy] = []

    def policy(
        self,
        prompt: Sequence[int],
        draft_policy: BlockPolicy,
        *,
        copies: bool,
        predicted: Sequence[int] | None,
        max_block_size: int,
    ) -> TextPolicy | None:
        """Return the policy of a request; None if it uses no text.

        Args:
            prompt: tokens of the prompt.
            draft_policy: decides the rounds of the draft model.
            copies: whether draft tokens are copied from the context.
            predicted: tokens of the predicted answer.
            max_block_size: tokens verified per round, anchor included.
        """
        sources: list[TextSource] = []
        if predicted:
            sources.append(Prediction(predicted))
        if copies:
            sources.append(self._index(prompt))
        if not sources:
            return None
        return TextPolicy(sources, draft_policy, self._statistics, max_block_size)

    def keep_index(self, policy: TextPolicy | None) -> None:
        """Store the index of a finished answer for the next turn of its conversation."""
        for source in policy.sources if policy else ():
            if isinstance(source, ContextCopy):
                self._indexes = [*self._indexes, source][-_MAX_INDEXES:]

    def _index(self, prompt: Sequence[int]) -> ContextCopy:
        """Return an index of `prompt`, extended from a stored one that holds its beginning."""
        for number, index in enumerate(self._indexes):
            if index.is_prefix_of(prompt):
                del self._indexes[number]
                index.extend(prompt[len(index) :])
                return index
        return ContextCopy(prompt)
