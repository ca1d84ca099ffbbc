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
from typing import Protocol

import mlx.core as mx

from dflash_mlx.config import LogitsProcessor, SamplingConfig
from dflash_mlx.constraints import processed
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.models.protocols import Block, Candidates
from dflash_mlx.sampling import (
    Chooser,
    Stream,
    draw,
    filtered,
    log_probs,
    make_chooser,
    row_key,
)


class AcceptRule(Protocol):
    """Decides one round. `best` are the target's best tokens where they are known already."""

    def __call__(
        self,
        block: Block,
        logits: mx.array,
        history: Sequence[int],
        position: int,
        best: BestTokens | None = None,
    ) -> mx.array:
        """Return the verdict on `block`, whose row 0 stands at `position`.

        `logits` [B, V] are the target's, `history` the tokens up to the anchor.
        """


def request_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the rule of a request: rejection for what a draft drew, matching for all else.

    What a draft drew is part of the randomness, so with such a draft a seed gives one text for
    one way of drafting only; the text's distribution is the target's all the same.
    """
    match = match_rule(make_chooser(sampling, seed), processors)
    if sampling.greedy:
        return match if processors else _greedy_rule(match)
    reject = rejection_rule(sampling, seed, processors)

    def rule(
        block: Block,
        logits: mx.array,
        history: Sequence[int],
        position: int,
        best: BestTokens | None = None,
    ) -> mx.array:
        return (match if block.candidates is None else reject)(block, logits, history, position)

    return rule


def _greedy_rule(match: AcceptRule) -> AcceptRule:
    """Return `match`, which takes the best tokens, with a way that needs no logits for it."""

    def rule(
        block: Block,
        logits: mx.array,
        history: Sequence[int],
        position: int,
        best: BestTokens | None = None,
    ) -> mx.array:
        if best is None:
            return match(block, logits, history, position)
        chosen = best.tokens[:, 0]
        confidence = mx.sigmoid(best.logits[:, 0] - best.logits[:, 1])
        return _verdict(chosen[:-1] == block.tokens[0], block.healthy, chosen, confidence)

    return rule


def match_rule(choose: Chooser, processors: Sequence[LogitsProcessor] = ()) -> AcceptRule:
    """Return the rule that accepts draft tokens while they equal the target's choice."""

    def rule(
        block: Block,
        logits: mx.array,
        history: Sequence[int],
        position: int,
        best: BestTokens | None = None,
    ) -> mx.array:
        draft_tokens = block.tokens[0]
        scores = processed(processors, history, draft_tokens, logits)
        chosen = choose(scores, position)
        return _verdict(chosen[:-1] == draft_tokens, block.healthy, chosen, _confidence(scores))

    return rule


def rejection_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the rule of speculative sampling, for blocks that carry `candidates`."""

    def rule(
        block: Block,
        logits: mx.array,
        history: Sequence[int],
        position: int,
        best: BestTokens | None = None,
    ) -> mx.array:
        assert block.candidates is not None, "the draft proposed without probabilities"
        draft_tokens = block.tokens[0]
        # in float32: rounded probabilities are another distribution
        scores = log_probs(processed(processors, history, draft_tokens, logits).astype(mx.float32))
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
        return _verdict(accept, block.healthy, tokens, _confidence(scores))

    return rule


def only_token(verdict: mx.array) -> mx.array:
    """Return the token [1, 1] of a plain step's verdict, unread."""
    return verdict[2:3][None]


def _confidence(scores: mx.array) -> mx.array:
    """Return what [B] the best of each row of logits [B, V] has against the next best.

    The probability itself would need a sum of exponentials over the vocabulary in every round.
    """
    best = mx.argmax(scores, axis=-1, keepdims=True)
    first = mx.take_along_axis(scores, best, axis=-1)[:, 0]
    others = mx.put_along_axis(scores, best, mx.array(-mx.inf, scores.dtype), axis=-1)
    return mx.sigmoid((first - mx.max(others, axis=-1)).astype(mx.float32))


def _verdict(
    accept: mx.array, healthy: mx.array, tokens: mx.array, confidence: mx.array
) -> mx.array:
    """Pack the longest accepted prefix of `accept` [B - 1] with tokens and confidences [B]."""
    if accept.size:
        n_accepted = mx.cumprod(accept.astype(mx.int32)).sum()
        head = mx.stack([n_accepted.astype(mx.int32), healthy.astype(mx.int32)])
    else:
        head = mx.array([0, 1], dtype=mx.int32)  # a plain step pays for its token only
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
