"""Chooses, round by round, between draft tokens from text and the draft model.

It must not know how a source finds its tokens, or how the policy of the draft model decides.
"""

from collections.abc import Iterator, Sequence

from dflash_mlx.controller.selection import MIN_SPEEDUP
from dflash_mlx.controller.text_estimates import BlockCosts, TextAcceptance
from dflash_mlx.decode.policy import BlockPolicy, TextProposal
from dflash_mlx.decode.round import Round
from dflash_mlx.models.protocols import DRAFT
from dflash_mlx.proposals.source import TextSource

MAX_BLOCK_SIZE = 32
"""The largest block from text: the largest that the Metal kernels verify in one pass."""

_BLOCK_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Block sizes from text: few, so that each is measured soon."""

_SCORED_TOKENS = 16
"""Tokens of each source that are compared with the answer after every round."""

_UNPIPELINED_COST = 1.08
"""Cost of a plain step that overlaps no other, in pipelined plain steps: measured 4 to 17%
(docs/log.md, "plain steps of an answer that drafts"). Without text, plain steps are pipelined."""

_RATE_MEMORY = 0.9
"""Factor of old rounds in the throughput of the draft model: about the last ten decide."""


class TextStatistics:
    """What the requests of a pair have observed: acceptance by source, and costs of rounds."""

    def __init__(self) -> None:
        self.costs = BlockCosts()
        self._acceptance: dict[str, TextAcceptance] = {}

    def acceptance(self, source: str) -> TextAcceptance:
        """Return the acceptance rates of a source."""
        return self._acceptance.setdefault(source, TextAcceptance())


class TextPolicy:
    """A block policy that verifies draft tokens from text where that is expected to be faster.

    The expected throughput of a block from text is compared with the recent throughput of the
    rounds of `draft_policy`. The acceptance of a source is observed in every round, also where
    its tokens were not verified: they are compared with the committed tokens. `draft_policy`
    observes its own rounds only.
    """

    def __init__(
        self,
        sources: Sequence[TextSource],
        draft_policy: BlockPolicy,
        statistics: TextStatistics | None = None,
        max_block_size: int = MAX_BLOCK_SIZE,
    ) -> None:
        self.draft_policy = draft_policy
        self.sources = tuple(sources)
        self._statistics = statistics or TextStatistics()
        self._max_block_size = min(max_block_size, MAX_BLOCK_SIZE)
        self._tokens, self._seconds = 0.0, 0.0  # of recent rounds of the draft policy
        self._scored = [self._proposal(source) for source in self.sources]

    @property
    def disabled_reason(self) -> str | None:
        """Why the draft model is disabled, or None while it is enabled."""
        return self.draft_policy.disabled_reason

    @property
    def disabled_for_request(self) -> bool:
        """Whether the draft model is disabled for the rest of the request."""
        return self.draft_policy.disabled_for_request

    def next_block_size(self, context_length: int) -> int:
        """Return the block size of the next round of the draft model."""
        return self.draft_policy.next_block_size(context_length)

    def next_text(self, max_block_size: int) -> TextProposal | None:
        """Return draft tokens from text for a block of at most `max_block_size`, if they pay."""
        best, best_rate = None, MIN_SPEEDUP * self._draft_rate()
        for source in self.sources:
            for size, rate in self._rates(source, source.match_length, max_block_size):
                if rate > best_rate:
                    best, best_rate = (source, size), rate
        if best is None:
            return None
        source, size = best
        tokens = source.propose(size - 1)
        return TextProposal(source.name, tuple(tokens)) if tokens else None

    def next_step_is_plain(self) -> bool:
        """Return whether another plain step follows a plain step now, whatever it shows."""
        if not self.draft_policy.next_step_is_plain():
            return False
        pays = MIN_SPEEDUP * self._draft_rate()
        return not any(
            rate > pays
            for source in self.sources
            for _, rate in self._rates(source, source.next_match_length, self._max_block_size)
        )

    def times_draft(self) -> bool:
        """Return whether the next round of the draft model is to be timed separately."""
        return self.draft_policy.times_draft()

    def launches_next_draft_early(self) -> bool:
        """Return whether to launch the next draft before the caller receives this round."""
        if not self.draft_policy.launches_next_draft_early():
            return False
        return self.next_text(self._max_block_size) is None

    def observe(self, finished: Round) -> None:
        """Update costs, acceptance and sources from a finished round."""
        statistics = self._statistics
        if finished.drafted and finished.source != DRAFT:
            statistics.costs.observe(finished.drafted + 1, finished.seconds)
        else:
            self.draft_policy.observe(finished)
            self._tokens = self._tokens * _RATE_MEMORY + len(finished.tokens)
            self._seconds = self._seconds * _RATE_MEMORY + finished.seconds
            if not finished.drafted and finished.measures_one_round:
                share = 1 / _UNPIPELINED_COST if finished.unpipelined else 1.0
                statistics.costs.observe(1, share * finished.seconds)
        for index, source in enumerate(self.sources):
            match_length, proposed = self._scored[index]
            n_compared = min(len(proposed), len(finished.tokens))
            n_right = _n_equal(proposed, finished.tokens)
            statistics.acceptance(source.name).observe(match_length, n_right, n_compared)
            source.extend(finished.tokens)
            self._scored[index] = self._proposal(source)

    def _proposal(self, source: TextSource) -> tuple[int, list[int]]:
        return source.match_length, source.propose(_SCORED_TOKENS)

    def _rates(
        self, source: TextSource, match_length: int, max_block_size: int
    ) -> Iterator[tuple[int, float]]:
        """Yield block sizes and the expected tokens per second of a block from `source`."""
        if match_length == 0:
            return
        costs, acceptance = self._statistics.costs, self._statistics.acceptance(source.name)
        limit = min(max_block_size, self._max_block_size, costs.largest_allowed)
        for size in _BLOCK_SIZES:
            if size <= limit:
                tokens = 1 + acceptance.expected(match_length, size - 1)
                yield size, tokens / costs.seconds(size)

    def _draft_rate(self) -> float:
        """Return the recent tokens per second of the draft policy, or those of plain steps."""
        plain = 1 / self._statistics.costs.seconds(1)
        return max(plain, self._tokens / self._seconds) if self._seconds else plain


def _n_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
