"""The prompt into both models' caches, chunk by chunk.

The chunk grid is that of mlx-lm's generation: all prompt tokens but the last,
`prefill_step_size` at a time; the last one is the first anchor. No logits are computed, and the
target features of at most one chunk exist at a time.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from dflash_mlx.cache import PairCache
from dflash_mlx.decode.history import History
from dflash_mlx.decode.loop import State
from dflash_mlx.decode.readback import settle
from dflash_mlx.models.pair import Pair

Progress = Callable[[int, int], bool]
"""`(prompt rows done, prompt rows in all) -> go on?`"""


def prefill(
    pair: Pair,
    cache: PairCache,
    prompt: Sequence[int],
    n_rows: int,
    progress: Progress,
    stable: int = 0,
) -> State | None:
    """Bring `cache` to hold all of `prompt` but its last token; return the state to decode from.

    `cache` already holds the first `cache.length` tokens. Returns None when `progress` stopped
    it; the cache then holds the chunks that were finished. The place behind the first `stable`
    tokens, which a later prompt will share, is remembered where it is passed.

    Raises:
        OutOfMemoryBudget: the rows exceed the cache's budget.
    """
    end = len(prompt) - 1
    assert 0 <= cache.length <= end, (cache.length, end)
    try:
        while cache.length < end:
            if not progress(cache.length, end):
                return None
            start = cache.length
            tokens = list(prompt[start : min(start + n_rows, end)])
            read_chunk(pair, cache, mx.array([tokens]), stable)
            settle(*cache.arrays)
            mx.clear_cache()
        progress(end, end)
    finally:
        cache.rollback()
    return State(history=History(prompt))


def read_chunk(pair: Pair, cache: PairCache, tokens: mx.array, stable: int = 0) -> None:
    """Bring the rows of `tokens` [1, n] into both models' caches, without waiting for them.

    The place behind the first `stable` rows of the cache is remembered if it is among them.
    """
    start, n_rows = cache.length, tokens.shape[1]
    passes_stable = start < stable <= start + n_rows
    cache.append(n_rows)
    features = pair.target.forward(tokens, cache.layers, pair.target_layer_ids).features
    if passes_stable:
        cache.snapshot(stable - start)
    cache.commit(n_rows)
    if pair.draft is None or cache.context is None:
        return
    if cache.context.slides and passes_stable:
        pair.draft.extend(features[:, : stable - start], start, cache.context)
        cache.context.snapshot()
        features, start = features[:, stable - start :], stable
    if features.shape[1]:
        pair.draft.extend(features, start, cache.context)
