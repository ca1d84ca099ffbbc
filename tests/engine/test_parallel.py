"""Several requests at once: the text of a solo run, fair turns, and shared rows."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from dflash_mlx.config import CacheConfig, GenerationConfig, SamplingConfig
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.worker import Worker
from dflash_mlx.models.pair import Pair
from tests.tiny import loaded_pair, random_draft, tiny_target

SHORT = GenerationConfig(max_tokens=20)
SYSTEM = "You are a careful assistant with many tools. " * 4


def make_engine(family="qwen3", parallel=4, **changes):
    worker = Worker("test", parallel)

    def load():
        target = tiny_target(family)
        return loaded_pair(Pair(target, random_draft(target)), **changes)

    return Engine(worker.run(load), worker)


def together(engine, prompts, config=SHORT):
    """Start all requests before any of them runs; return their results."""
    start = threading.Event()
    engine.worker.submit(start.wait)
    streams = [engine.stream(prompt, config) for prompt in prompts]
    start.set()
    return [stream.result() for stream in streams]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "qwen3_5", "lfm2"])
@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=0.8, seed=3)])
def test_requests_in_turns_write_what_each_writes_alone(family, sampling):
    """A cache or a random key shared by two requests changes text without an error."""
    prompts = [f"{'words ' * n}question {n}" for n in (1, 7, 3, 12, 5, 2)]
    config = GenerationConfig(max_tokens=20, sampling=sampling)
    with make_engine(family) as engine:
        turns = together(engine, prompts, config)
    with make_engine(family) as engine:
        alone = [engine.generate(prompt, config) for prompt in prompts]
    assert [one.tokens for one in turns] == [one.tokens for one in alone]


def test_a_short_answer_does_not_wait_for_a_long_prompt():
    """A 50-token answer beside a 32,000-token prompt came after minutes."""
    with make_engine(cache_config=CacheConfig(prefill_step_size=16)) as engine:
        start = threading.Event()
        engine.worker.submit(start.wait)
        long = engine.stream("x" * 800, SHORT)
        short = engine.stream("hi", GenerationConfig(max_tokens=6, block_size=1))
        start.set()
        short.result()
        done, total = next(chunk.progress for chunk in reversed(list(long)) if chunk.progress)
        seen = engine.worker.run(lambda: engine._prefix_cache.n_conversations)
        assert (done, total, seen) == (total, total, 2)


def test_turns_alternate_between_a_prefill_and_a_decoding_request():
    """Order of work on the worker thread, without a clock."""
    order = []
    with make_engine(cache_config=CacheConfig(prefill_step_size=16)) as engine:
        forward = engine.loaded.pair.target.forward

        def noted(tokens, *rest):
            order.append(tokens.shape[1])
            return forward(tokens, *rest)

        engine.loaded.pair.target.forward = noted
        together(engine, ["x" * 200, "hi"], GenerationConfig(max_tokens=6, block_size=1))
    ones = [index for index, n_rows in enumerate(order) if n_rows == 1]
    turns = order[ones[0] : ones[5] + 1]
    assert 16 in turns
    assert all(pair != (16, 16) for pair in pairwise(turns)), turns


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gemma3_text"])
def test_a_new_conversation_reuses_the_head_of_another(family):
    """Each new session of an agent read its 20,000 tokens of tools again."""
    with make_engine(family) as engine:
        engine.session(SYSTEM).generate("first question", SHORT)
        result = engine.session(SYSTEM).generate("another one", SHORT)
        head = len(f"<system>{SYSTEM}\n")
        assert result.cached_tokens >= head
        assert result.cache_miss is None or result.cached_tokens < result.cache_miss.position
    with make_engine(family) as engine:
        assert engine.session(SYSTEM).generate("another one", SHORT).tokens == result.tokens


def test_a_cancelled_prompt_goes_on_where_it_stopped():
    """A client that timed out and sent the prompt again never got an answer."""
    with make_engine(cache_config=CacheConfig(prefill_step_size=16)) as engine:
        stream = engine.stream("y" * 300, SHORT)
        next(chunk for chunk in stream if chunk.progress and chunk.progress[0] >= 32)
        stream.cancel()
        assert stream.result().finish_reason == "cancelled"
        assert engine.generate("y" * 300, SHORT).cached_tokens >= 32


def test_a_miss_names_the_first_different_message():
    """A client that puts a clock into its system prompt never hits, and nothing shows why."""
    with make_engine("qwen3_5") as engine:
        first = [{"role": "system", "content": f"{SYSTEM} 10:41"}, {"role": "user", "content": "a"}]
        second = [{**first[0], "content": f"{SYSTEM} 10:42"}, first[1]]
        engine.generate(first, SHORT)
        miss = engine.generate(second, SHORT).cache_miss
        assert (miss.message, miss.role) == (0, "system")
        assert miss.position > len(SYSTEM)


def test_many_threads_with_random_cancels_leave_nothing_behind():
    """A deadlock, a lost request, or memory that grows with each cancelled one."""
    rng = random.Random(5)
    with make_engine() as engine:

        def one(number):
            stream = engine.stream(f"question {number} " * (number % 7 + 1), SHORT)
            if number % 3 == 0:
                for index, _ in enumerate(stream):
                    if index == number % 5:
                        stream.cancel()
                        break
            return stream.result().finish_reason

        with ThreadPoolExecutor(16) as pool:
            reasons = list(pool.map(one, rng.sample(range(300), 120)))
        assert set(reasons) <= {"length", "stop", "cancelled"}
        idle = engine.worker.run(lambda: engine._prefix_cache)
        assert all(not one.running for one in idle._conversations)
        assert idle.max_bytes is None or idle.nbytes <= idle.max_bytes
        assert engine.worker._n_requests == 0
        assert not engine.worker._cancels


def test_the_budget_holds_with_several_running_requests():
    """A budget per conversation was exceeded as many times as there were conversations."""
    with make_engine() as engine:
        row = engine.loaded.pair.target.shape.row_bytes + engine.loaded.pair.draft.row_bytes
    budget = 2500 * row
    with make_engine(cache_config=CacheConfig(max_bytes=budget)) as engine:
        most = 0
        grow = engine._prefix_cache.grow

        def watched(lease, n_tokens):
            nonlocal most
            grow(lease, n_tokens)
            most = max(most, engine._prefix_cache.nbytes)

        engine._prefix_cache.grow = watched
        prompts = [f"{letter}" * 200 for letter in "abcdefgh"]
        results = together(engine, prompts, GenerationConfig(max_tokens=60))
        assert most <= budget
        assert all(one.finish_reason == "length" for one in results)
