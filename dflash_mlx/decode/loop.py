"""The decode loop: draft, verify, accept, commit.

Greedy, sampled, constrained and plain decoding differ only in the objects of a `DecodeConfig`.
The loop knows tokens and cache rows; it must not know text, prompts or files.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import mlx.core as mx

from dflash_mlx.cache import PairCache
from dflash_mlx.decode.accept import AcceptRule, VerifyOutput, plain_step_token
from dflash_mlx.decode.history import History
from dflash_mlx.decode.policy import BlockPolicy, TextProposer, launches_next_step_early
from dflash_mlx.decode.readback import RoundVerdict, launch, read_back, settle
from dflash_mlx.decode.round import Round, Stopwatch
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.protocols import DRAFT, Block, empty_block

_MAX_PENDING_ROUNDS = 64
"""Rounds whose features are stored while the draft does not run. Older ones are dropped and leave
a gap in the draft's context, which lowers acceptance but not correctness. 64 plain steps of a
target with 5 layers of 4,096 hidden units hold 2.6 MB in bfloat16."""


class StopDecision(NamedTuple):
    """How many of a round's tokens belong to the answer, and whether the answer ends there."""

    n_tokens: int
    """At least 1."""
    ended: bool


StopCondition = Callable[[Sequence[int]], StopDecision]
"""Receives the tokens that a round is about to commit, in order and each once."""


@dataclass(frozen=True)
class DecodeState:
    """A conversation between two rounds.

    `history` holds all tokens; the last one is the anchor. `features` are hidden states
    [1, n, F] of the newest committed rows that are not in the draft's context yet, oldest first.
    `n_tokens` counts the tokens of the answer.
    """

    history: History
    features: tuple[mx.array, ...] = ()
    n_tokens: int = 0
    ended: bool = False

    @property
    def anchor(self) -> int:
        """The last token, which is not in the target's cache yet."""
        return self.history[-1]


@dataclass(frozen=True)
class DecodeConfig:
    """The decisions of one request: block policy, accept rule, stop condition, answer length.

    `text` offers draft tokens from text; without it, all draft tokens come from the draft model.
    """

    policy: BlockPolicy
    accept_rule: AcceptRule
    stop_condition: StopCondition
    max_tokens: int
    text: TextProposer | None = None

    def continues(self, state: DecodeState) -> bool:
        """Return whether another round follows `state`."""
        return state.n_tokens < self.max_tokens and not state.ended

    def block_size(self, cache: PairCache, state: DecodeState) -> int:
        """Return the block size of the next round, at most the number of tokens still allowed."""
        wanted = self.policy.next_block_size(cache.length)
        return min(wanted, self.max_tokens - state.n_tokens)

    def pipelines_next(self, state: DecodeState, block: Block) -> bool:
        """Return whether to launch the next plain step before this round's token is read."""
        remaining = self.max_tokens - state.n_tokens
        return launches_next_step_early(self.policy, block.block_size, remaining)


def decode(
    pair: Pair, cache: PairCache, state: DecodeState, config: DecodeConfig
) -> Iterator[tuple[Round, DecodeState]]:
    """Yield each round and the state after it, until the stop condition or the token limit.

    Between rounds the target's cache holds every committed token except the anchor. This also
    holds when the generator is closed or a round raises an error.
    """
    watch = Stopwatch()
    block: Block | None = None  # drafted before the last round was yielded
    early: VerifyOutput | None = None  # plain step launched before its anchor was read
    try:
        while config.continues(state):
            launched_early = early is not None or (block is not None and block.block_size > 1)
            if early is not None:
                block = empty_block()
            elif block is None:
                state, block = next_block(pair, cache, state, config)
            draft_s = _time_draft(config.policy, block, watch)
            context_length = cache.length
            verified = early or verify(pair, cache, mx.array([[state.anchor]]), block)
            verdict = config.accept_rule(block, verified, state.history, context_length + 1)
            pipelines = config.pipelines_next(state, block)
            early = launch_next_step(pair, cache, verdict) if pipelines else None
            result = read_back(verdict)
            decision = config.stop_condition(result.tokens[: result.n_accepted + 1])
            if early is None:
                cache.commit(decision.n_tokens)
            state = advance(state, result.tokens, decision, verified.features)
            finished = replace(
                _report(block, result, decision),
                seconds=watch.lap(),
                draft_s=draft_s,
                context_length=context_length,
                launched_early=launched_early,
                caller_s=watch.caller_s,
                pipelined_next=early is not None,
            )
            config.policy.observe(finished)
            block = None
            may_draft = early is None and config.continues(state)
            if may_draft and config.policy.launches_next_draft_early():
                state, block = next_block(pair, cache, state, config)
            with watch.paused():
                yield finished, state
    finally:
        cache.rollback()


def next_block(
    pair: Pair, cache: PairCache, state: DecodeState, config: DecodeConfig
) -> tuple[DecodeState, Block]:
    """Return the block of the next round, from text or from the draft model, and the state."""
    text = config.text.next_text(config.max_tokens - state.n_tokens) if config.text else None
    if text is None:
        return propose(pair, cache, state, config.block_size(cache, state))
    return state, Block(mx.array([text.tokens], mx.int32), mx.array(True), source=text.source)


def propose(
    pair: Pair, cache: PairCache, state: DecodeState, block_size: int
) -> tuple[DecodeState, Block]:
    """Return a block of `block_size` and the state after the draft's context was updated."""
    if block_size == 1 or pair.draft is None or cache.context is None:
        return state, empty_block()
    state = update_context(pair, cache, state)
    block = pair.draft.propose(state.anchor, block_size, cache.context)
    launch(block.tokens)
    return state, block


def update_context(pair: Pair, cache: PairCache, state: DecodeState) -> DecodeState:
    """Add the pending features to the draft's context; return the state without them."""
    if not state.features or pair.draft is None or cache.context is None:
        return state
    features = mx.concatenate(list(state.features), axis=1)
    start = len(state.history) - 1 - features.shape[1]
    # a round that raised an error may have added some of them
    n_known = max(0, cache.context.length - start)
    if n_known < features.shape[1]:
        pair.draft.extend(features[:, n_known:], start + n_known, cache.context)
    return replace(state, features=())


def verify(pair: Pair, cache: PairCache, anchor: mx.array, block: Block) -> VerifyOutput:
    """Run `anchor` [1, 1] and the block's draft tokens through the target; return its output."""
    tokens = mx.concatenate([anchor, block.tokens], axis=1)
    cache.append(tokens.shape[1])
    output = pair.target.forward(tokens, cache.layers, pair.target_layer_ids)
    logits = pair.target.logits(output.hidden)[0]
    return VerifyOutput(logits, output.features, pair.target.fused_argmax(output.hidden))


def launch_next_step(pair: Pair, cache: PairCache, verdict: mx.array) -> VerifyOutput:
    """Launch the plain step after a plain step whose token is not read yet; return its output.

    The open cache row belongs to the anchor and is final, so it is committed now. The new row
    stays open and is rolled back if the token ends the answer. The verdict is launched on its
    own because MLX marks all arrays of one launch as ready together: in one launch, the token
    would arrive only after the next step.
    """
    launch(verdict)
    cache.commit(1)
    verified = verify(pair, cache, plain_step_token(verdict), empty_block())
    launch(verified.logits)
    return verified


def advance(
    state: DecodeState, tokens: Sequence[int], decision: StopDecision, features: mx.array
) -> DecodeState:
    """Return the state after committing the first `decision.n_tokens` of `tokens`.

    The round committed cache rows for the old anchor and all new tokens but the last, which is
    the new anchor. So `features` [1, B, F] has one row to store per new token.
    """
    n_tokens = decision.n_tokens
    pending = (*state.features, features[:, :n_tokens]) if features.shape[2] else ()
    return DecodeState(
        history=state.history.extended(tokens[:n_tokens]),
        features=pending[-_MAX_PENDING_ROUNDS:],
        n_tokens=state.n_tokens + n_tokens,
        ended=decision.ended,
    )


def _report(block: Block, result: RoundVerdict, decision: StopDecision) -> Round:
    """Return the round's report without its times."""
    return Round(
        tokens=tuple(result.tokens[: decision.n_tokens]),
        drafted=block.block_size - 1,
        accepted=min(result.n_accepted, decision.n_tokens),
        draft_is_finite=result.draft_is_finite,
        seconds=0.0,
        source=block.source,
        confidence=tuple(result.confidence[: decision.n_tokens]),
    )


def _time_draft(policy: BlockPolicy, block: Block, watch: Stopwatch) -> float | None:
    """Wait for the draft tokens if the policy times this draft; return the seconds so far."""
    drafted = block.block_size > 1 and block.source == DRAFT
    if not drafted or not policy.times_draft():
        return None
    settle(block.tokens)
    return watch.elapsed()
