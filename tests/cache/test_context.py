"""The draft's context cache across turns: trimming restores the rows of a snapshot."""

import mlx.core as mx
import pytest

from dflash_mlx.decode.prefill import read_chunk
from dflash_mlx.models.pair import Pair
from tests.tiny import random_draft, tiny_target

STABLE = 55


def _tokens(n_rows, seed=0):
    return mx.random.randint(0, 256, (1, n_rows), key=mx.random.key(seed))


@pytest.fixture
def pair():
    """A target and a draft with one sliding layer of 16 rows and one full layer."""
    target = tiny_target("qwen3")
    return Pair(target, random_draft(target))


@pytest.mark.parametrize("n_prompt", [STABLE, STABLE + 5])
def test_trimming_to_a_snapshot_restores_the_sliding_rows(pair, n_prompt):
    """After each turn whose reasoning a template strips, drafts started with an empty window."""
    prompt = _tokens(n_prompt)
    warm, cold = pair.make_cache(), pair.make_cache()
    read_chunk(pair, warm, prompt, [STABLE])
    for seed in range(40):
        read_chunk(pair, warm, _tokens(10, seed + 1))
    assert warm.trim_to(STABLE) == STABLE
    read_chunk(pair, cold, prompt[:, :STABLE])
    for cache in (warm, cold):
        read_chunk(pair, cache, _tokens(10, 99))
    for ours, theirs in zip(warm.context.layers, cold.context.layers, strict=True):
        n_rows = ours.limit or STABLE + 10
        assert ours.positions[-n_rows:].tolist() == theirs.positions[-n_rows:].tolist()
        found, expected = (layer.contiguous_before(STABLE + 10) for layer in (ours, theirs))
        assert mx.array_equal(found[0][..., -n_rows:, :], expected[0][..., -n_rows:, :])
        assert mx.array_equal(found[1][..., -n_rows:, :], expected[1][..., -n_rows:, :])


def test_a_snapshot_is_not_overwritten(pair):
    """Returning to a snapshot a second time must find the same rows."""
    cache = pair.make_cache()
    read_chunk(pair, cache, _tokens(STABLE), [STABLE])
    sliding = cache.context.layers[0]
    first = sliding.contiguous_before(STABLE)[0][..., -15:, :]
    for seed in (1, 2):
        for _ in range(40):
            read_chunk(pair, cache, _tokens(10, seed))
        cache.trim_to(STABLE)
        assert mx.array_equal(sliding.contiguous_before(STABLE)[0][..., -15:, :], first)
