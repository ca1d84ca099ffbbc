"""The prefix cache: what it supplies equals a cold prefill, whatever happened before."""

import random

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.decode.history import History
from dflash_mlx.decode.loop import DecodeState, update_context
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.models.pair import Pair
from dflash_mlx.prefix_cache.conversation import common_length, token_ids
from dflash_mlx.prefix_cache.pool import MAX_IDLE, PrefixCache
from tests.models.plain_rows import assert_equal_rows
from tests.models.test_families import OTHER_ORDER
from tests.tiny import random_draft, rounds, tiny_target
from tests.tiny_configs import CONFIGS

HEAD = list(range(40, 100))


def pool_of(pair, max_bytes=None):
    return PrefixCache(lambda: pair.make_cache(), max_bytes, mx.eval)


def serve(pair, pool, prompt, n_tokens=0, stable=None, step=24):
    """Run one request; return its lease and all tokens."""
    stable = len(prompt) - 1 if stable is None else stable
    lease = pool.acquire(prompt, stable)
    for _ in prefill(pair, lease.cache, prompt, step, [len(HEAD), stable]):
        pass
    state = DecodeState(History(prompt))
    for _, state in rounds(pair, lease.cache, state, n_tokens) if n_tokens else ():
        pass
    update_context(pair, lease.cache, state)
    return lease, list(state.history)


@pytest.fixture(scope="module")
def pair():
    target = tiny_target("qwen3")
    return Pair(target, random_draft(target))


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [([], [1], 0), ([1, 2, 3], [1, 2, 3, 4], 3), ([1, 2], [1, 2], 2), ([9, 2], [1, 2], 0)],
)
def test_common_length(first, second, length):
    """Off by one, a row of another token is used without an error."""
    assert common_length(token_ids(first), token_ids(second)) == length


def test_a_prompt_that_continues_takes_the_rows_over(pair):
    """Chat with a stateless client read the whole conversation at every turn."""
    pool = pool_of(pair)
    first, written = serve(pair, pool, HEAD, 12)
    pool.release(first, written)
    second = pool.acquire([*written, 7, 8, 9])
    assert second.cache is first.cache
    assert second.cached_tokens == len(written) - 1
    assert second.draft_cached_tokens == len(written) - 1
    assert pool.n_conversations == 1


def test_a_prompt_that_branches_off_leaves_the_conversation_as_it_is(pair):
    """A subagent's request once evicted its parent."""
    pool = pool_of(pair)
    agent, written = serve(pair, pool, [*HEAD, *range(100, 140)], 12)
    pool.release(agent, written)
    branch = pool.acquire([*HEAD, *range(140, 180)])
    assert branch.cached_tokens == len(HEAD)
    assert branch.cache is not agent.cache
    assert branch.first_difference == len(HEAD)
    again = pool.acquire([*written, 7])
    assert again.cache is agent.cache
    assert again.cached_tokens == len(written) - 1


def test_the_same_prompt_while_the_first_still_runs(pair):
    """A client that retries would share one cache with itself."""
    pool = pool_of(pair)
    prompt = [*HEAD, *range(100, 140)]
    first, _ = serve(pair, pool, prompt)
    second = pool.acquire(prompt)
    assert second.cache is not first.cache
    assert second.cached_tokens == len(prompt) - 1


def test_a_cancelled_prefill_keeps_what_it_has_read(pair):
    """A client that gives up and sends the same prompt again waited as long again."""
    pool = pool_of(pair)
    prompt = [*HEAD, *range(100, 160)]
    lease = pool.acquire(prompt, len(prompt) - 1)
    steps = prefill(pair, lease.cache, prompt, 24)
    assert [next(steps), next(steps), next(steps)] == [0, 24, 48]
    steps.close()
    pool.release(lease, prompt)
    assert pool.acquire(prompt).cached_tokens == 48


def test_the_budget_is_never_exceeded_and_long_conversations_survive_short_ones(pair):
    """With plain least-recently-used order a title request evicted the agent."""
    one, written = serve(pair, pool_of(pair), [*HEAD, *range(100, 200)])
    budget = 3 * one.cache.nbytes
    pool = pool_of(pair, budget)
    agent, written = serve(pair, pool, [*HEAD, *range(100, 200)])
    pool.release(agent, written)
    for start in range(12):
        title, ids = serve(pair, pool, [*range(200 - start, 220 - start), start])
        pool.release(title, ids)
        assert pool.nbytes <= budget
    assert pool.acquire([*written, 3]).cache is agent.cache


def test_short_requests_do_not_collect_without_bound(pair):
    """Thousands of short conversations made the sum of their bytes the longest part of a round."""
    pool = pool_of(pair)
    for start in range(MAX_IDLE + 8):
        lease, ids = serve(pair, pool, [start, *range(100, 110)])
        pool.release(lease, ids)
    assert pool.n_conversations == MAX_IDLE
    assert pool.nbytes == sum(one.cache.nbytes for one in pool._conversations)


def test_running_requests_push_idle_conversations_out(pair):
    """The cap of a server that counted only idle entries did not hold."""
    pool = pool_of(pair, None)
    idle, written = serve(pair, pool, [*HEAD, *range(100, 200)])
    pool.release(idle, written)
    pool.max_bytes = pool.nbytes + 1000
    running = pool.acquire(list(range(10, 50)))
    assert pool.make_room(2000)
    assert pool.n_conversations == 1
    assert running.conversation.running
    assert not pool.make_room(pool.max_bytes + 1)


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_warm_equals_cold_in_random_programs(family):
    """Extend, branch, retry, cancel and evict in any order: rows are those of a cold prompt."""
    rng = random.Random(f"programs of {family}")
    target = tiny_target(family)
    pair = Pair(target, random_draft(target) if family == "qwen3" else None)
    tolerance = 1e-4 if family in OTHER_ORDER else 0
    vocab = min(target.shape.vocab_size, 200)
    pool = pool_of(pair)
    known, running = [HEAD], []
    for _ in range(25):
        base = rng.choice(known)
        cut = rng.choice([len(base), rng.randrange(len(base)), len(HEAD)])
        prompt = [*base[:cut], *(rng.randrange(vocab) for _ in range(rng.randint(1, 30)))]
        stable = rng.randint(0, len(prompt) - 1)
        lease, ids = serve(pair, pool, prompt, rng.choice([0, 5]), stable, rng.choice([16, 64]))
        check(pair, lease, ids, tolerance)
        known.append(ids)
        running.append((lease, ids))
        if rng.random() < 0.7:
            lease, ids = running.pop(rng.randrange(len(running)))
            pool.release(lease, ids)
        if rng.random() < 0.2:
            pool.max_bytes = rng.choice([None, pool.nbytes * 3 // 4])
            pool.make_room(0)


def check(pair, lease, ids, tolerance):
    """Compare the lease's rows with those of a cold prefill of the same tokens."""
    length = lease.cache.length
    assert length == len(ids) - 1
    cold = pair.make_cache()
    for _ in prefill(pair, cold, ids, 2048):
        pass
    assert_equal_rows(lease.cache.layers, cold.layers, tolerance)
    if pair.draft is not None:
        for ours, theirs in zip(lease.cache.context.layers, cold.context.layers, strict=True):
            # a sliding layer may lack rows before its next snapshot, never hold others
            held = np.intersect1d(ours.positions, theirs.positions)
            assert ours.limit or len(held) == length
            for mine, other in zip(ours.arrays, theirs.arrays, strict=True):
                rows, others = (
                    np.array(array)[:, :, np.searchsorted(layer.positions, held)]
                    for array, layer in ((mine, ours), (other, theirs))
                )
                assert np.allclose(rows, others, rtol=0, atol=1e-5)


def test_rows_that_the_draft_lacks_are_counted(pair):
    """A prefix without the draft's rows decodes correctly, with low acceptance and no reason."""
    pool = pool_of(pair)
    lease, ids = serve(pair, pool, HEAD)
    lease.cache.context.trim_to(40)
    pool.release(lease, ids)
    again = pool.acquire([*HEAD, 1])
    assert (again.cached_tokens, again.draft_cached_tokens) == (len(HEAD) - 1, 40)
