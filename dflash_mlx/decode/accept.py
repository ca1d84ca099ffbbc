"""Which draft tokens the target would have written itself. Pure functions, nothing is awaited.

Letters: B rows of the block, V vocabulary, K candidates per draft token. A verdict is one int32
array [2 + 2B]: the number of accepted draft tokens, whether the draft's logits were finite, B
tokens of which the first accepted + 1 are final, and the target's confidence at the B rows, in
millionths: the probability of its best token where there were none but that and the next best.

*Matching*: the target chooses a token at every row (argmax, or a draw with the key of that
position) and draft tokens are accepted while they equal the choice. The emitted tokens are the
target's choices by construction, so the text does not depend on draft or block, sampled text
with a seed included. It is speculative sampling with a one-hot proposal (arXiv 2302.01318 with
q = 1): a draft token x is accepted with probability p(x), else p without x is drawn from.

*Rejection*: for a draft that drew its tokens from probabilities q. Accept x with probability
min(1, p(x) / q(x)), at the first refusal draw from max(p - q, 0), else the bonus from p.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import mlx.core as mx

from dflash_mlx.config import LogitsProcessor, SamplingConfig
from dflash_mlx.decode.logits_processors import processed
from dflash_mlx.decode.sampling import choose, filtered, log_probs
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.models.protocols import Block, Candidates
from dflash_mlx.models.random_keys import Stream, draw, row_key


class Scored(NamedTuple):
    """What the target makes of a block's rows: logits [B, V], and its best tokens if known.

    Logits are lazy: a rule that has its answer from `best` leaves them uncomputed.
    """

    logits: mx.array
    best: BestTokens | None = None


class AcceptRule(Protocol):
    """Decides one round."""

    def __call__(
        self, block: Block, scored: Scored, history: Sequence[int], position: int
    ) -> mx.array:
        """Return the verdict on `block`, whose row 0 stands at `position`.

        `history` are the tokens up to the anchor.
        """


def request_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the rule of a request: rejection for what a draft drew, matching for all else.

    What a draft drew is part of the randomness, so with such a draft a seed gives one text for
    one way of drafting only; the text's distribution is the target's all the same.
    """
    match = match_rule(sampling, seed, processors)
    if sampling.greedy:
        return match
    reject = rejection_rule(sampling, seed, processors)

    def rule(block: Block, scored: Scored, history: Sequence[int], position: int) -> mx.array:
        return (match if block.candidates is None else reject)(block, scored, history, position)

    return rule


def match_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the rule that accepts draft tokens while they equal the target's choice."""
    if sampling.greedy:
        return _greedy_rule(processors)

    def rule(block: Block, scored: Scored, history: Sequence[int], position: int) -> mx.array:
        logits = processed(processors, history, block.tokens[0], scored.logits)
        return _matched(block, choose(logits, sampling, seed, position), _best_two(logits))

    return rule


def _greedy_rule(processors: Sequence[LogitsProcessor]) -> AcceptRule:
    """Return the matching rule whose choice is the best token; it may be known without logits.

    mlx-lm takes the best log-probability. The best logit is the same token: subtracting the
    log-sum-exp is exact in floating point between half of it and twice it (Sterbenz), so it makes
    no ties there, and on a CPU it costs as much as the head itself at sixteen rows.
    """

    def rule(block: Block, scored: Scored, history: Sequence[int], position: int) -> mx.array:
        best = None if processors else scored.best
        if best is None:
            best = _best_two(processed(processors, history, block.tokens[0], scored.logits))
        return _matched(block, best.tokens[:, 0], best)

    return rule


def rejection_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the rule of speculative sampling, for blocks that carry `candidates`."""

    def rule(block: Block, scored: Scored, history: Sequence[int], position: int) -> mx.array:
        assert block.candidates is not None, "the draft proposed without probabilities"
        draft_tokens = block.tokens[0]
        # in float32: rounded probabilities are another distribution
        logits = processed(processors, history, draft_tokens, scored.logits)
        scores = log_probs(logits.astype(mx.float32))
        target_probs = mx.softmax(filtered(scores, sampling), axis=-1)
        draft_probs = _dense(block.candidates, logits.shape[-1])
        coins = mx.stack(
            [
                mx.random.uniform(key=row_key(seed, position + row, Stream.COIN))
                for row in range(draft_tokens.size)
            ]
        )
        # a draft probability that is no number refuses its token and leaves the target's own
        ratio = _at(target_probs[:-1], draft_tokens) / _at(draft_probs, draft_tokens)
        residual = mx.maximum(target_probs[:-1] - draft_probs, 0)
        useful = residual.sum(axis=-1, keepdims=True) > 0
        residual = mx.where(useful, residual, target_probs[:-1])
        accept = coins < ratio
        refused = draw(mx.log(residual), seed, position, Stream.RESIDUAL)
        bonus = draw(mx.log(target_probs[-1:]), seed, position + draft_tokens.size, Stream.BONUS)
        tokens = mx.concatenate([mx.where(accept, draft_tokens, refused), bonus])
        return _verdict(accept, block.healthy, tokens, _best_two(logits))

    return rule


def only_token(verdict: mx.array) -> mx.array:
    """Return the token [1, 1] of a plain step's verdict, unread."""
    return verdict[2:3][None]


def _best_two(logits: mx.array) -> BestTokens:
    """Return the best and the next best token of each row of `logits` [B, V]."""
    best = mx.argmax(logits, axis=-1, keepdims=True)
    others = mx.put_along_axis(logits, best, mx.array(-mx.inf, logits.dtype), axis=-1)
    tokens = mx.concatenate([best, mx.argmax(others, axis=-1, keepdims=True)], axis=-1)
    return BestTokens(
        tokens,
        mx.take_along_axis(logits, tokens, axis=-1).astype(mx.float32),
        mx.logsumexp(logits, axis=-1),  # lazy, and read by nobody here
    )


def _matched(block: Block, chosen: mx.array, best: BestTokens) -> mx.array:
    """Return the verdict on a block whose tokens are right while they equal `chosen` [B]."""
    return _verdict(chosen[:-1] == block.tokens[0], block.healthy, chosen, best)


def _verdict(accept: mx.array, healthy: mx.array, tokens: mx.array, best: BestTokens) -> mx.array:
    """Pack the longest accepted prefix of `accept` [B - 1] with tokens and confidences [B].

    Confidence is what the best token has against the next: the probability itself would need a
    sum of exponentials over the vocabulary in every round.
    """
    if accept.size:
        n_accepted = mx.cumprod(accept.astype(mx.int32)).sum()
        head = mx.stack([n_accepted.astype(mx.int32), healthy.astype(mx.int32)])
    else:
        head = mx.array([0, 1], dtype=mx.int32)  # a plain step pays for its token only
    confidence = mx.sigmoid(best.logits[:, 0] - best.logits[:, 1])
    millionths = (confidence * 1e6).astype(mx.int32)
    return mx.concatenate([head, tokens.astype(mx.int32), millionths])


def _at(probs: mx.array, tokens: mx.array) -> mx.array:
    """Return the probability [B - 1] that each row of `probs` gives its token."""
    return mx.take_along_axis(probs, tokens[:, None], axis=-1)[:, 0]


def _dense(candidates: Candidates, vocab_size: int) -> mx.array:
    """Spread candidate probabilities [B - 1, K] over the vocabulary [B - 1, V]."""
    empty = mx.zeros((candidates.ids.shape[0], vocab_size))
    probs = candidates.probs.astype(mx.float32)
    return mx.put_along_axis(empty, candidates.ids, probs, axis=-1)
