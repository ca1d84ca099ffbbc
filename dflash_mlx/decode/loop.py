"""The decode loop: draft, verify, accept, commit.

It knows tokens and rows, not text, prompts, clocks of others or files. Greedy, sampled,
constrained and plain decoding differ by the objects in a `DecodeConfig`; there is no second loop.
Invariant: the target's cache holds every committed token except the anchor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import mlx.core as mx

from dflash_mlx.cache import PairCache
from dflash_mlx.decode.accept import AcceptRule, Scored, only_token
from dflash_mlx.decode.history import History
from dflash_mlx.decode.policy import BlockPolicy
from dflash_mlx.decode.readback import launch, read_back, settle
from dflash_mlx.decode.round import Round
from dflash_mlx.decode.stopwatch import Stopwatch
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.protocols import Block, no_draft

_PENDING = 64
"""Most rounds whose taps are kept for a draft that is not running; older ones leave a gap."""


class StopDecision(NamedTuple):
    """Where a run of tokens ends: how many to keep (at least 1), and whether the answer ends."""

    n_kept: int
    ended: bool


StopCondition = Callable[[Sequence[int]], StopDecision]
"""Looks at the tokens a round would commit, in order and once each, and cuts them."""


@dataclass(frozen=True)
class State:
    """Where a conversation stands between two rounds.

    `history` holds every token, prompt first, anchor last. `features` are the taps [1, n, F] of
    the newest committed rows that are not in the draft's context yet, oldest first.
    """

    history: History
    features: tuple[mx.array, ...] = ()
    n_tokens: int = 0
    ended: bool = False

    @property
    def anchor(self) -> int:
        """The last token, not yet in the target's cache."""
        return self.history[-1]


@dataclass(frozen=True)
class DecodeConfig:
    """What makes one request differ from another."""

    policy: BlockPolicy
    rule: AcceptRule
    ending: StopCondition
    limit: int

    def wants_more(self, state: State) -> bool:
        """Whether another round follows."""
        return state.n_tokens < self.limit and not state.ended

    def rows(self, cache: PairCache, state: State) -> int:
        """Return the rows of the next round; a round never commits more than there is room for."""
        return min(self.policy.rows(cache.length), self.limit - state.n_tokens)

    def pipelines_next(self, state: State, block: Block) -> bool:
        """Whether a plain step will follow this one, unless its token ends the answer."""
        return (
            block.n_rows == 1
            and state.n_tokens + 1 < self.limit
            and self.policy.next_step_is_plain()
        )


class VerifyOutput(NamedTuple):
    """What the target makes of a block: its rows scored, and their features [1, B, F]."""

    scored: Scored
    features: mx.array


def decode(
    pair: Pair, cache: PairCache, state: State, plan: DecodeConfig
) -> Iterator[tuple[Round, State]]:
    """Yield every round and the state behind it, until the plan's limit or its ending.

    Closing the generator between two rounds, or an error inside one, leaves the cache holding
    committed rows only.
    """
    watch = Stopwatch()
    block: Block | None = None
    ahead: VerifyOutput | None = None
    try:
        while plan.wants_more(state):
            launched_early = ahead is not None or (block is not None and block.n_rows > 1)
            if block is None:
                state, block = draft(pair, cache, state, 1 if ahead else plan.rows(cache, state))
            draft_s = _wait(block, watch) if block.n_rows > 1 and plan.policy.timed() else None
            context = cache.length
            seen = ahead or verify(pair, cache, mx.array([[state.anchor]]), block)
            verdict = plan.rule(block, seen.scored, state.history, context + 1)
            ahead = step_ahead(pair, cache, verdict) if plan.pipelines_next(state, block) else None
            n_accepted, healthy, tokens, confidence = read_back(verdict)
            cut = plan.ending(tokens[: n_accepted + 1])
            if ahead is None:
                cache.commit(cut.n_kept)
            state = advance(state, tokens[: cut.n_kept], seen.features, cut.ended)
            done = Round(
                tokens=tuple(tokens[: cut.n_kept]),
                drafted=block.n_rows - 1,
                accepted=min(n_accepted, cut.n_kept),
                healthy=healthy,
                seconds=watch.lap(),
                draft_s=draft_s,
                context=context,
                confidence=tuple(confidence[: cut.n_kept]),
                launched_early=launched_early,
                pipelined_next=ahead is not None,
                caller_s=watch.caller_s,
            )
            plan.policy.observe(done)
            block = None
            if ahead is None and plan.wants_more(state) and plan.policy.drafts_ahead():
                state, block = draft(pair, cache, state, plan.rows(cache, state))
            with watch.paused():
                yield done, state
    finally:
        cache.rollback()


def draft(pair: Pair, cache: PairCache, state: State, n_rows: int) -> tuple[State, Block]:
    """Propose `n_rows - 1` tokens behind the anchor, the draft's context brought up to date."""
    if n_rows == 1 or pair.draft is None or cache.context is None:
        return state, no_draft()
    state = catch_up(pair, cache, state)
    block = pair.draft.propose(state.anchor, n_rows, cache.context)
    launch(block.tokens)
    return state, block


def catch_up(pair: Pair, cache: PairCache, state: State) -> State:
    """Bring the pending features into the draft's context; return the state without them."""
    if not state.features or pair.draft is None or cache.context is None:
        return state
    features = mx.concatenate(list(state.features), axis=1)
    start = len(state.history) - 1 - features.shape[1]
    known = max(0, cache.context.length - start)  # a round that failed may have brought them
    if known < features.shape[1]:
        pair.draft.extend(features[:, known:], start + known, cache.context)
    return replace(state, features=())


def verify(pair: Pair, cache: PairCache, anchor: mx.array, block: Block) -> VerifyOutput:
    """Run `anchor` [1, 1] and the block's draft tokens through the target."""
    tokens = mx.concatenate([anchor, block.tokens], axis=1)
    cache.append(tokens.shape[1])
    walked = pair.target.forward(tokens, cache.layers, pair.target_layer_ids)
    logits = pair.target.logits(walked.hidden)[0]
    return VerifyOutput(Scored(logits, pair.target.best(walked.hidden)), walked.features)


def step_ahead(pair: Pair, cache: PairCache, verdict: mx.array) -> VerifyOutput:
    """Launch the plain step behind a plain step whose token is not read yet.

    The open row is that of the anchor, which is final whatever its token turns out to be, so it
    is committed now; the new row stays open, and is dropped if the token ended the answer. The
    verdict is launched apart: MLX tells that arrays are ready for all of a launch at once, and
    the token would come with the step behind it.
    """
    launch(verdict)
    cache.commit(1)
    seen = verify(pair, cache, only_token(verdict), no_draft())
    launch(seen.scored.logits)
    return seen


def advance(state: State, tokens: Sequence[int], features: mx.array, ended: bool) -> State:
    """Return the state behind `tokens`, whose last one is the new anchor.

    The rows just committed are those of the old anchor and of all `tokens` but the last, which
    is why as many rows of `features` [1, B, F] are kept as there are tokens.
    """
    kept = (*state.features, features[:, : len(tokens)]) if features.shape[2] else ()
    return State(
        history=state.history.extended(tokens),
        features=kept[-_PENDING:],
        n_tokens=state.n_tokens + len(tokens),
        ended=ended,
    )


def _wait(block: Block, watch: Stopwatch) -> float:
    """Wait for the draft tokens; return the seconds of the round so far."""
    settle(block.tokens)
    return watch.running()
