"""Accept rules: which draft tokens of a verified block become part of the answer.

Pure functions over lazy arrays. They must not know caches, models or time.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import mlx.core as mx

from dflash_mlx.config import LogitsProcessor, SamplingConfig
from dflash_mlx.decode.logits_processors import processed
from dflash_mlx.decode.sampling import choose, filtered, log_probs
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.models.protocols import Block, Candidates
from dflash_mlx.models.random_keys import RandomStream, draw, row_key

# Letters in this file: B block size, V vocabulary, K candidates per draft token.


class VerifyOutput(NamedTuple):
    """The target's output for one block. All arrays are lazy."""

    logits: mx.array
    """[B, V]. A rule that decides from `best` leaves them uncomputed."""
    features: mx.array
    """[1, B, F], hidden states of the target layers that the draft reads."""
    best: BestTokens | None = None
    """The two best tokens of each row, where a kernel found them without writing logits."""


class AcceptRule(Protocol):
    """Decides how many draft tokens of a block are accepted and which token follows them."""

    def __call__(
        self, block: Block, verified: VerifyOutput, history: Sequence[int], position: int
    ) -> mx.array:
        """Return the verdict on `block` as one int32 array [2 + 2B].

        It holds the number of accepted draft tokens, whether the draft's logits were finite,
        B tokens of which the first accepted + 1 are final, and B confidences in millionths.
        A confidence is the probability of the target's best token if only that token and the
        second best were possible.

        `history` holds all tokens up to and including the anchor. The token that row 0 predicts
        has absolute position `position`.
        """


def request_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the accept rule of a request.

    Blocks that carry `candidates` are decided by rejection sampling, all others by matching.
    With rejection sampling the text for one seed depends on the draft and the block size; its
    distribution is the target's in both cases.
    """
    match = match_rule(sampling, seed, processors)
    if sampling.greedy:
        return match
    reject = rejection_rule(sampling, seed, processors)

    def rule(
        block: Block, verified: VerifyOutput, history: Sequence[int], position: int
    ) -> mx.array:
        decide = match if block.candidates is None else reject
        return decide(block, verified, history, position)

    return rule


def match_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the rule that accepts draft tokens while they equal the target's choice.

    The target chooses a token in every row: the argmax, or a sample drawn with the random key of
    that position. The emitted tokens are these choices, so the text depends neither on the draft
    nor on the block size. This is speculative sampling with a one-hot proposal (arXiv 2302.01318
    with q = 1): the draft token x is accepted with probability p(x), otherwise a token is drawn
    from p without x.
    """
    if sampling.greedy:
        return _greedy_rule(processors)

    def rule(
        block: Block, verified: VerifyOutput, history: Sequence[int], position: int
    ) -> mx.array:
        logits = processed(processors, history, block.tokens[0], verified.logits)
        return _matched(block, choose(logits, sampling, seed, position), _best_two(logits))

    return rule


def _greedy_rule(processors: Sequence[LogitsProcessor]) -> AcceptRule:
    """Return the matching rule that chooses the token with the largest logit, as mlx-lm does."""

    def rule(
        block: Block, verified: VerifyOutput, history: Sequence[int], position: int
    ) -> mx.array:
        best = None if processors else verified.best
        if best is None:
            best = _best_two(processed(processors, history, block.tokens[0], verified.logits))
        return _matched(block, best.tokens[:, 0], best)

    return rule


def rejection_rule(
    sampling: SamplingConfig, seed: int, processors: Sequence[LogitsProcessor] = ()
) -> AcceptRule:
    """Return the rule of speculative sampling for blocks that carry `candidates`.

    With target probabilities p and draft probabilities q, the draft token x is accepted with
    probability min(1, p(x) / q(x)). The token after the accepted ones is drawn from max(p - q, 0)
    after a rejection, and from p if every draft token was accepted.
    """

    def rule(
        block: Block, verified: VerifyOutput, history: Sequence[int], position: int
    ) -> mx.array:
        assert block.candidates is not None, "the block carries no draft probabilities"
        draft_tokens = block.tokens[0]
        # in float32: rounding probabilities to 16 bits changes the distribution
        logits = processed(processors, history, draft_tokens, verified.logits)
        scores = log_probs(logits.astype(mx.float32))
        target_probs = mx.softmax(filtered(scores, sampling), axis=-1)
        draft_probs = _dense(block.candidates, logits.shape[-1])
        coins = mx.stack(
            [
                mx.random.uniform(key=row_key(seed, position + row, RandomStream.COIN))
                for row in range(draft_tokens.size)
            ]
        )
        # a NaN ratio compares as false: the token is rejected and p itself is drawn from
        ratio = _at(target_probs[:-1], draft_tokens) / _at(draft_probs, draft_tokens)
        residual = mx.maximum(target_probs[:-1] - draft_probs, 0)
        has_mass = residual.sum(axis=-1, keepdims=True) > 0
        residual = mx.where(has_mass, residual, target_probs[:-1])
        accept = coins < ratio
        replacements = draw(mx.log(residual), seed, position, RandomStream.RESIDUAL)
        bonus_position = position + draft_tokens.size
        bonus = draw(mx.log(target_probs[-1:]), seed, bonus_position, RandomStream.BONUS)
        tokens = mx.concatenate([mx.where(accept, draft_tokens, replacements), bonus])
        return _verdict(accept, block.draft_is_finite, tokens, _best_two(logits))

    return rule


def plain_step_token(verdict: mx.array) -> mx.array:
    """Return the token [1, 1] of a plain step's verdict as a lazy array."""
    return verdict[2:3][None]


def _best_two(logits: mx.array) -> BestTokens:
    """Return the best and the second best token of each row of `logits` [B, V].

    mlx-lm takes the argmax of log-probabilities. In 16 bits, subtracting the log-sum-exp rounds
    close logits to equal values, of which the first wins, so the same subtraction is made here.
    In float32 the argmax of the logits is the same token: the subtraction is exact for logits
    between half and twice the log-sum-exp (Sterbenz). There the log-sum-exp is not computed, as
    on a CPU it costs as much as the head for 16 rows.
    """
    scores = logits if logits.dtype == mx.float32 else log_probs(logits)
    best = mx.argmax(scores, axis=-1, keepdims=True)
    others = mx.put_along_axis(scores, best, mx.array(-mx.inf, scores.dtype), axis=-1)
    tokens = mx.concatenate([best, mx.argmax(others, axis=-1, keepdims=True)], axis=-1)
    return BestTokens(
        tokens,
        mx.take_along_axis(logits, tokens, axis=-1).astype(mx.float32),
        mx.logsumexp(logits, axis=-1),  # lazy; the rules do not read it
    )


def _matched(block: Block, chosen: mx.array, best: BestTokens) -> mx.array:
    """Return the verdict on a block whose draft tokens are accepted while they equal `chosen`."""
    return _verdict(chosen[:-1] == block.tokens[0], block.draft_is_finite, chosen, best)


def _verdict(
    accept: mx.array, draft_is_finite: mx.array, tokens: mx.array, best: BestTokens
) -> mx.array:
    """Pack the longest accepted prefix of `accept` [B - 1] with tokens and confidences [B].

    The confidence compares the two best logits. The full probability needs a sum of exponentials
    over the vocabulary in every round.
    """
    if accept.size:
        n_accepted = mx.cumprod(accept.astype(mx.int32)).sum()
        head = mx.stack([n_accepted.astype(mx.int32), draft_is_finite.astype(mx.int32)])
    else:
        head = mx.array([0, 1], dtype=mx.int32)  # a constant: a plain step has no draft tokens
    confidence = mx.sigmoid(best.logits[:, 0] - best.logits[:, 1])
    millionths = (confidence * 1e6).astype(mx.int32)
    return mx.concatenate([head, tokens.astype(mx.int32), millionths])


def _at(probs: mx.array, tokens: mx.array) -> mx.array:
    """Return the probability [B - 1] that each row of `probs` assigns to its token."""
    return mx.take_along_axis(probs, tokens[:, None], axis=-1)[:, 0]


def _dense(candidates: Candidates, vocab_size: int) -> mx.array:
    """Return candidate probabilities [B - 1, K] as rows over the vocabulary [B - 1, V]."""
    empty = mx.zeros((candidates.ids.shape[0], vocab_size))
    probs = candidates.probs.astype(mx.float32)
    return mx.put_along_axis(empty, candidates.ids, probs, axis=-1)
