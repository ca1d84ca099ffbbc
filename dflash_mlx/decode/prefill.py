"""Prefill: read a prompt into the caches of both models, chunk by chunk.

The chunks are those of mlx-lm's generation. No logits are computed, and features of at most one
chunk exist at a time. This module must not know text or requests.
"""

from collections.abc import Collection, Iterator, Sequence

import mlx.core as mx

from dflash_mlx.cache import PairCache
from dflash_mlx.decode.readback import settle
from dflash_mlx.models.pair import Pair


def prefill(
    pair: Pair,
    cache: PairCache,
    prompt: Sequence[int],
    prefill_step_size: int,
    boundaries: Collection[int] = (),
) -> Iterator[int]:
    """Read all of `prompt` but its last token into `cache`, one chunk per step.

    `cache` already holds the first `cache.length` tokens. The last prompt token is the first
    anchor. A snapshot is taken after each number of tokens in `boundaries`, which later prompts
    may share.

    Yields:
        The number of prompt tokens in the cache, before the first chunk and after each chunk.
        Closing the generator leaves the finished chunks in the cache.

    Raises:
        OutOfMemoryBudget: the cache exceeds its byte budget.
    """
    end = len(prompt) - 1
    assert 0 <= cache.length <= end, (cache.length, end)
    try:
        yield cache.length
        while cache.length < end:
            start = cache.length
            tokens = list(prompt[start : min(start + prefill_step_size, end)])
            read_chunk(pair, cache, mx.array([tokens]), boundaries)
            settle(*cache.arrays)
            mx.clear_cache()
            yield cache.length
    finally:
        cache.rollback()


def read_chunk(
    pair: Pair, cache: PairCache, tokens: mx.array, boundaries: Collection[int] = ()
) -> None:
    """Run `tokens` [1, n] through the target into both caches, without waiting for the device.

    A snapshot is taken after each length in `boundaries` that this chunk reaches.
    """
    start, n_tokens = cache.length, tokens.shape[1]
    end = start + n_tokens
    reached = sorted(length for length in set(boundaries) if start < length <= end)
    cache.append(n_tokens)
    features = pair.target.forward(tokens, cache.layers, pair.target_layer_ids).features
    for length in reached:
        cache.snapshot(length - start)
    cache.commit(n_tokens)
    if pair.draft is None or cache.context is None:
        return
    position = start
    # a sliding layer of the draft drops rows, so its snapshots are taken on the way
    for length in reached if cache.context.has_sliding_layer else ():
        pair.draft.extend(features[:, position - start : length - start], position, cache.context)
        cache.context.snapshot()
        position = length
    if position < end:
        pair.draft.extend(features[:, position - start :], position, cache.context)
