"""Prefill: read a prompt into the caches of both models, chunk by chunk.

The chunks are those of mlx-lm's generation. No logits are computed, and features of at most one
chunk exist at a time. This module must not know text or requests.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from dflash_mlx.cache import PairCache
from dflash_mlx.decode.history import History
from dflash_mlx.decode.loop import DecodeState
from dflash_mlx.decode.readback import settle
from dflash_mlx.models.pair import Pair

PrefillProgress = Callable[[int, int], bool]
"""`(prompt tokens read, prompt tokens to read) -> whether to continue`."""


def prefill(
    pair: Pair,
    cache: PairCache,
    prompt: Sequence[int],
    prefill_step_size: int,
    progress: PrefillProgress,
    stable_length: int = 0,
) -> DecodeState | None:
    """Read all of `prompt` but its last token into `cache`; return the state to decode from.

    `cache` already holds the first `cache.length` tokens. The last prompt token is the first
    anchor. Returns None when `progress` stopped the prefill; the cache then holds the finished
    chunks. A snapshot is taken after the first `stable_length` tokens, which a later prompt will
    share.

    Raises:
        OutOfMemoryBudget: the cache exceeds its byte budget.
    """
    end = len(prompt) - 1
    assert 0 <= cache.length <= end, (cache.length, end)
    try:
        while cache.length < end:
            if not progress(cache.length, end):
                return None
            start = cache.length
            tokens = list(prompt[start : min(start + prefill_step_size, end)])
            read_chunk(pair, cache, mx.array([tokens]), stable_length)
            settle(*cache.arrays)
            mx.clear_cache()
        progress(end, end)
    finally:
        cache.rollback()
    return DecodeState(history=History(prompt))


def read_chunk(pair: Pair, cache: PairCache, tokens: mx.array, stable_length: int = 0) -> None:
    """Run `tokens` [1, n] through the target into both caches, without waiting for the device.

    A snapshot is taken after `stable_length` tokens if this chunk reaches that length.
    """
    start, n_tokens = cache.length, tokens.shape[1]
    takes_snapshot = start < stable_length <= start + n_tokens
    cache.append(n_tokens)
    features = pair.target.forward(tokens, cache.layers, pair.target_layer_ids).features
    if takes_snapshot:
        cache.snapshot(stable_length - start)
    cache.commit(n_tokens)
    if pair.draft is None or cache.context is None:
        return
    if cache.context.has_sliding_layer and takes_snapshot:
        pair.draft.extend(features[:, : stable_length - start], start, cache.context)
        cache.context.snapshot()
        features, start = features[:, stable_length - start :], stable_length
    if features.shape[1]:
        pair.draft.extend(features, start, cache.context)
