"""Forked caches: the rows of a cold prefill, and no effect on the cache they were taken from."""

import mlx.core as mx
import pytest

from dflash_mlx.decode.prefill import read_chunk
from dflash_mlx.models.pair import Pair
from tests.models.plain_rows import assert_equal_rows
from tests.tiny import random_draft, tiny_target
from tests.tiny_configs import CONFIGS

HEAD, STABLE, LENGTH = 12, 40, 90


def tokens(n_tokens, seed=0):
    return mx.random.randint(0, 200, (1, n_tokens), key=mx.random.key(seed))


def cold(pair, *parts):
    cache = pair.make_cache()
    for part in parts:
        read_chunk(pair, cache, part)
    return cache


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def pair(request):
    target = tiny_target(request.param)
    return Pair(target, random_draft(target) if request.param == "qwen3" else None)


def test_a_fork_continues_like_a_cold_prompt_and_leaves_its_origin_alone(pair):
    """A second conversation with the same head read all of it again, or spoiled the first."""
    prompt, branch, rest = tokens(LENGTH), tokens(20, 1), tokens(15, 2)
    origin = pair.make_cache()
    read_chunk(pair, origin, prompt[:, :HEAD], [HEAD])
    read_chunk(pair, origin, prompt[:, HEAD:STABLE], [STABLE])
    read_chunk(pair, origin, prompt[:, STABLE:])
    for length in (HEAD, STABLE):
        fork = origin.fork(length)
        assert (fork.length, origin.length) == (length, LENGTH)
        mx.eval(*fork.arrays)
        read_chunk(pair, fork, branch)
        parts = [prompt[:, :HEAD], prompt[:, HEAD:length]] if length > HEAD else [prompt[:, :HEAD]]
        assert_same(fork, cold(pair, *parts, branch))
    read_chunk(pair, origin, rest)
    chunks = (prompt[:, :HEAD], prompt[:, HEAD:STABLE], prompt[:, STABLE:])
    assert_same(origin, cold(pair, *chunks, rest))


def test_a_fork_at_the_end_equals_its_origin(pair):
    """The same prompt again, while the first request with it still runs."""
    prompt, rest = tokens(LENGTH), tokens(15, 2)
    origin = cold(pair, prompt)
    fork = origin.fork(LENGTH)
    assert fork.length == LENGTH
    mx.eval(*fork.arrays)
    for cache in (origin, fork):
        read_chunk(pair, cache, rest)
    assert_same(fork, origin)


def test_lengths_that_cannot_be_forked_give_the_nearest_snapshot(pair):
    """A recurrent state under the key of another length is silent corruption."""
    prompt = tokens(LENGTH)
    origin = pair.make_cache()
    read_chunk(pair, origin, prompt, [STABLE])
    fork = origin.fork(STABLE + 7)
    assert fork.length == origin.reusable_length(STABLE + 7)
    assert fork.length in (STABLE, STABLE + 7)


def assert_same(ours, theirs):
    """Compare the rows that both caches hold, bit for bit."""
    assert ours.length == theirs.length
    assert_equal_rows(ours.layers, theirs.layers)
    if ours.context is not None:
        for mine, other in zip(ours.context.layers, theirs.context.layers, strict=True):
            limit = mine.limit or ours.length
            assert mine.positions[-limit:].tolist() == other.positions[-limit:].tolist()
            for array, expected in zip(mine.arrays, other.arrays, strict=True):
                rows = array[..., : len(mine.positions), :][..., -limit:, :]
                others = expected[..., : len(other.positions), :][..., -limit:, :]
                assert mx.array_equal(rows, others)
