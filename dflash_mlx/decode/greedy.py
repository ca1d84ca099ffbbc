"""Prefill and decode one prompt greedily, for measurements and evaluations.

This module must not know text, sessions or requests; the engine resolves those itself.
"""

from collections.abc import Collection, Iterator, Sequence

from dflash_mlx.cache import PairCache
from dflash_mlx.config import CacheConfig, SamplingConfig
from dflash_mlx.decode.accept import AcceptRule, match_rule
from dflash_mlx.decode.history import History
from dflash_mlx.decode.loop import DecodeConfig, DecodeState, StopCondition, StopDecision, decode
from dflash_mlx.decode.policy import BlockPolicy, FixedBlock, TextProposer
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.decode.round import Round
from dflash_mlx.models.pair import Pair


def never_stop(tokens: Sequence[int]) -> StopDecision:
    """Return the decision to commit all of `tokens` and continue."""
    return StopDecision(len(tokens), False)


def stop_after(eos_token_ids: Collection[int]) -> StopCondition:
    """Return a condition that ends the answer after the first token in `eos_token_ids`."""

    def condition(tokens: Sequence[int]) -> StopDecision:
        for count, token in enumerate(tokens, 1):
            if token in eos_token_ids:
                return StopDecision(count, True)
        return StopDecision(len(tokens), False)

    return condition


def greedy_rounds(
    pair: Pair,
    prompt: Sequence[int],
    max_tokens: int,
    policy: BlockPolicy | None = None,
    *,
    accept_rule: AcceptRule | None = None,
    stop_condition: StopCondition = never_stop,
    cache: PairCache | None = None,
    text: TextProposer | None = None,
    prefill_step_size: int = CacheConfig.prefill_step_size,
) -> Iterator[Round]:
    """Prefill `prompt` and return the rounds of an answer of up to `max_tokens` tokens.

    The prefill runs before this returns, each round when it is requested. Defaults: the draft's
    trained block size in every round (plain decoding without a draft), greedy matching, no stop
    condition and a new cache. Pass `cache` to inspect it between rounds.
    """
    cache = pair.make_cache() if cache is None else cache
    for _ in prefill(pair, cache, prompt, prefill_step_size):
        pass
    state = DecodeState(History(prompt))
    policy = policy or FixedBlock(pair.draft.block_size if pair.draft else 1)
    rule = accept_rule or match_rule(SamplingConfig(), 0)
    config = DecodeConfig(policy, rule, stop_condition, max_tokens, text)
    return (finished for finished, _ in decode(pair, cache, state, config))
