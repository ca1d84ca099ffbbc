"""Conversations: cached rows reused by token ids, cancellation, threads, unchanged text."""

import asyncio
import threading

import mlx.core as mx
import pytest

from dflash_mlx.config import CacheConfig, GenerationConfig, SamplingConfig
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.models.pair import Pair
from tests.tiny import loaded_pair, plain, random_draft, tiny_target
from tests.tiny_configs import MARK


@pytest.fixture(scope="module")
def engine():
    """A tiny engine with a random draft, loaded on its worker thread."""
    worker = Worker("test")
    made = Engine(worker.run(lambda: loaded_pair(_pair())), worker)
    yield made
    made.close()


def _pair():
    target = tiny_target("qwen3")
    return Pair(target, random_draft(target))


def expected(engine, prompt_ids, n_tokens):
    """The tokens mlx-lm generates after `prompt_ids`, on the engine's thread."""
    model = engine.loaded.pair.target.model
    return engine.worker.run(lambda: plain(model, prompt_ids, n_tokens))


def render(engine, *messages):
    roles = ("user", "assistant")
    table = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    return engine.loaded.tokenizer.render(table, None)


SHORT = GenerationConfig(max_tokens=24)


def test_an_answer_equals_plain_decoding(engine):
    """Greedy text differed from mlx-lm's when it went through the public API."""
    result = engine.generate("a prompt that no other test sends", SHORT)
    ids = render(engine, "a prompt that no other test sends")
    assert list(result.tokens) == expected(engine, ids, 24)
    assert result.finish_reason == "length"
    assert (result.prompt_tokens, result.cached_tokens) == (len(ids), 0)
    assert result.generated_tokens == 24


def test_chunks_add_up_to_the_result(engine):
    """Streamed text differed from the result's text."""
    stream = engine.stream("Hello", SHORT)
    chunks = list(stream)
    result = chunks[-1].result
    assert (
        "".join(chunk.text for chunk in chunks)
        == result.text
        == engine.generate("Hello", SHORT).text
    )
    assert sum((chunk.tokens for chunk in chunks), ()) == result.tokens
    assert stream.result() is result


def test_the_second_turn_prefills_only_new_tokens(engine):
    """A prefix cache that never hit prefilled the whole conversation every turn."""
    session = engine.session()
    first = session.generate("Hello", SHORT)
    second = session.generate("Go on", SHORT)
    ids = render(engine, "Hello", first.text, "Go on")
    before = [*render(engine, "Hello"), *first.tokens]
    common = next(
        (i for i, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), len(before)
    )
    assert second.cached_tokens == min(common, len(before) - 1)
    assert second.cached_tokens >= len(render(engine, "Hello"))
    assert list(second.tokens) == expected(engine, ids, 24)


def test_acceptance_is_the_same_with_and_without_cached_rows(engine):
    """A reused prefix without the draft's context features had almost no acceptance."""
    session = engine.session()
    first = session.generate("Hello", SHORT)
    warm = session.generate("Go on", SHORT)
    history = [*zip(("user", "assistant", "user"), ("Hello", first.text, "Go on"), strict=True)]
    cold = engine.generate([{"role": r, "content": c} for r, c in history], SHORT)
    assert warm.tokens == cold.tokens
    assert warm.stats.accepted_lengths == cold.stats.accepted_lengths
    assert warm.stats.accepted_by_position == cold.stats.accepted_by_position


def test_rewritten_history_falls_back_to_the_common_prefix(engine):
    """Rows after a changed message were reused, although they belonged to other tokens."""
    session = engine.session()
    session.generate("Hello", SHORT)
    changed = [("user", "Hello"), ("assistant", "something else"), ("user", "Go on")]
    messages = [{"role": role, "content": content} for role, content in changed]
    result = session.generate(messages, SHORT)
    assert 0 < result.cached_tokens <= len(render(engine, "Hello"))
    ids = engine.loaded.tokenizer.render(messages, None)
    assert list(result.tokens) == expected(engine, ids, 24)


def test_reset_clears_the_conversation(engine):
    """Rows of the last conversation were visible to the next one."""
    session = engine.session()
    session.generate("Hello", SHORT)
    session.reset()
    result = session.generate("Go on", SHORT)
    assert result.cached_tokens == 0
    assert list(result.tokens) == expected(engine, render(engine, "Go on"), 24)


def test_a_turn_cancelled_before_its_first_token_adds_no_message(engine):
    """The history held an empty answer."""
    session, go_on = engine.session(), threading.Event()
    engine.worker.submit(lambda: go_on.wait(30))
    stream = session.stream("Hello", SHORT)
    stream.cancel()
    go_on.set()
    assert stream.result().finish_reason == "cancelled"
    assert session.messages == []


@pytest.mark.parametrize(
    ("prompt", "config"),
    [
        ([{"role": "user", "content": "Hello"}], SHORT),
        ("Hello", GenerationConfig(chat_template=False)),
    ],
)
def test_a_system_message_that_cannot_be_rendered_is_refused(engine, prompt, config):
    """A system message was dropped without an error."""
    with pytest.raises(BadRequest, match="system message"):
        engine.session(system="Be brief").generate(prompt, config)


def test_the_system_message_comes_first(engine):
    """The system message was rendered after the first turn."""
    session = engine.session(system="Be brief")
    session.generate("Hello", SHORT)
    assert [message["role"] for message in session.messages] == ["system", "user", "assistant"]


def test_a_cancelled_answer_keeps_committed_tokens_and_the_next_turn_is_exact(engine):
    """Ctrl-C during an answer left rows of rejected tokens in the caches."""
    session = engine.session()
    stream = session.stream("Hello", GenerationConfig(max_tokens=400))
    for chunk in stream:
        if chunk.tokens:
            stream.cancel()
    result = stream.result()
    assert result.finish_reason == "cancelled"
    assert 0 < result.generated_tokens < 400
    assert session.messages[-1] == {"role": "assistant", "content": result.text}
    second = session.generate("Go on", SHORT)
    assert list(second.tokens) == expected(
        engine, render(engine, "Hello", result.text, "Go on"), 24
    )
    assert second.cached_tokens > 0


@pytest.mark.parametrize("read", [True, False])
def test_leaving_a_stream_stops_its_request(engine, read):
    """An abandoned stream kept generating and delayed all later requests."""
    session = engine.session()
    stream = session.stream("Hello", GenerationConfig(max_tokens=700))
    if read:
        for chunk in stream:
            if chunk.tokens:
                break
    del stream
    engine.worker.run(lambda: None)  # wait for the end of the request
    written = session.messages[-1]["content"] if session.messages else ""
    assert len(written.encode()) < 400


def test_a_loop_over_a_temporary_stream_reads_it_to_the_end(engine):
    """A stream that only its loop refers to was stopped as if it had been deleted."""
    text = "".join(chunk.text for chunk in engine.stream("Hello", SHORT))
    assert text == engine.generate("Hello", SHORT).text


def test_a_waiting_request_can_be_cancelled_from_another_thread(engine):
    """A cancelled request ran when its turn came."""
    running = engine.stream("Hello", GenerationConfig(max_tokens=700))
    waiting = engine.stream("Hello", GenerationConfig(max_tokens=700))
    threading.Thread(target=waiting.cancel).start()
    next(iter(running))
    running.cancel()
    assert waiting.result().finish_reason == "cancelled"
    assert running.result().finish_reason == "cancelled", (
        "creating a session waited for the running request"
    )


def test_concurrent_requests_get_their_own_answers(engine):
    """Overlapping requests failed in an assertion of the GPU driver."""
    prompts = [f"Question {i}" for i in range(6)]
    alone = [engine.generate(prompt, SHORT).text for prompt in prompts]
    answers = [""] * len(prompts)

    def ask(index):
        answers[index] = engine.generate(prompts[index], SHORT).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == alone


def test_asyncio_reads_streams_without_blocking_its_loop(engine):
    """Reading a stream blocked the event loop."""

    async def read(prompt):
        return "".join([chunk.text async for chunk in engine.stream(prompt, SHORT)])

    async def both():
        return await asyncio.gather(read("Hello"), read("Go on"))

    assert asyncio.run(both()) == [engine.generate(p, SHORT).text for p in ("Hello", "Go on")]


def test_an_async_stream_left_early_still_has_its_result(engine):
    """Leaving the loop dropped chunks that had arrived, the last one included."""

    async def first(stream):
        while not stream._queue._ended:
            await asyncio.sleep(0.01)
        async for _ in stream:
            break

    stream = engine.stream("Hello", SHORT)
    asyncio.run(first(stream))
    assert stream.result().text == engine.generate("Hello", SHORT).text


def test_async_streams_use_no_executor_threads(engine):
    """One waiting thread per stream used up the default executor."""

    async def read(prompt):
        return "".join([chunk.text async for chunk in engine.stream(prompt, SHORT)])

    async def all_of_them():
        answers = [asyncio.create_task(read("Hello")) for _ in range(40)]
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 5)
        done = sum(task.done() for task in answers)
        return done, await asyncio.gather(*answers)

    done, answers = asyncio.run(all_of_them())
    assert done < 40, "the executor was blocked by the streams"
    assert len(set(answers)) == 1


def test_a_request_made_while_reading_another_does_not_deadlock(engine):
    """A second request made inside the loop over the first one never started."""
    asked = None
    for chunk in engine.stream("Hello", SHORT):
        if chunk.tokens and asked is None:
            asked = engine.generate("Go on", SHORT)
    assert asked.generated_tokens == 24


def test_an_error_in_a_logits_processor_reaches_only_its_caller(engine):
    """An error in one request ended the worker thread and all later requests."""

    def broken(tokens, logits):
        raise ZeroDivisionError("mine")

    session = engine.session()
    with pytest.raises(ZeroDivisionError, match="mine"):
        session.generate("Hello", GenerationConfig(max_tokens=8, logits_processors=(broken,)))
    assert session.messages == []
    stream = session.stream("Hello", GenerationConfig(max_tokens=8, logits_processors=(broken,)))
    for _ in range(2):  # every call raises the error
        with pytest.raises(ZeroDivisionError, match="mine"):
            stream.result()
    assert session.generate("Hello", SHORT).generated_tokens == 24


def test_processors_made_on_another_thread_work(engine):
    """MLX arrays of one thread were evaluated on another."""

    def only(token):
        return lambda tokens, logits: mx.where(
            mx.arange(logits.shape[-1]) == token, logits, -mx.inf
        )

    config = GenerationConfig(max_tokens=5, logits_processors=(only(65),))
    assert engine.generate("Hello", config).text == "AAAAA"


def test_a_seed_gives_one_text_for_every_block_size_and_order_of_requests(engine):
    """Another request in between changed the text of a seed."""

    def config(block, seed=3):
        sampling = SamplingConfig(temperature=1.5, top_p=0.95, seed=seed)
        return GenerationConfig(max_tokens=30, block_size=block, sampling=sampling)

    first = engine.generate("Hello", config(8))
    engine.generate("Other", config(3, seed=9))
    assert engine.generate("Hello", config(1)).tokens == first.tokens
    assert engine.generate("Hello", config(5)).tokens == first.tokens
    assert engine.generate("Hello", config(8, seed=4)).tokens != first.tokens


def test_a_drawn_seed_is_in_the_result(engine):
    """A sampled answer could not be reproduced."""
    sampling = SamplingConfig(temperature=1.5)
    first = engine.generate("Hello", GenerationConfig(max_tokens=20, sampling=sampling))
    again = SamplingConfig(temperature=1.5, seed=first.seed)
    assert (
        engine.generate("Hello", GenerationConfig(max_tokens=20, sampling=again)).tokens
        == first.tokens
    )


def test_stop_strings_end_the_answer_at_the_same_token_for_every_block_size(engine):
    """Tokens after the stop string, from the same block, were counted."""
    text = engine.generate("Hello", SHORT).text
    stop = text[9:12]
    results = [
        engine.generate("Hello", GenerationConfig(max_tokens=24, block_size=block, stop=(stop,)))
        for block in (1, 2, 5, 8)
    ]
    assert {(r.text, r.tokens, r.finish_reason) for r in results} == {
        (text[: text.index(stop)], results[0].tokens, "stop")
    }


@pytest.mark.parametrize("block", [1, 8])
def test_a_stop_that_is_a_special_token_ends_the_answer(engine, block):
    """A stop such as <|im_end|> has no text, so it never matched."""
    n_before = len(render(engine, "Hello")) + 5

    def mark_the_sixth(tokens, logits):
        marked = mx.arange(logits.shape[-1]) == MARK
        return mx.where(marked & (tokens.size == n_before), 1e4, logits)

    asked = {"max_tokens": 24, "block_size": block, "logits_processors": (mark_the_sixth,)}
    unstopped = engine.generate("Hello", GenerationConfig(**asked))
    stopped = engine.generate("Hello", GenerationConfig(**asked, stop=("<mark>",)))
    assert unstopped.tokens[5] == MARK
    assert (stopped.tokens, stopped.finish_reason) == (unstopped.tokens[:5], "stop")


def test_a_full_context_gives_a_notice_and_ends_with_length(engine):
    """A full context ended the answer without a notice."""
    room = 7
    prompt = "x" * (engine.loaded.context_length - room + 1 - len(render(engine, "")))
    chunks = list(engine.stream(prompt, GenerationConfig(max_tokens=50)))
    assert any(chunk.notice and f"room for {room} " in chunk.notice for chunk in chunks)
    result = chunks[-1].result
    assert (result.generated_tokens, result.finish_reason) == (room, "length")


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(engine):
    """The prompt was cut without an error."""
    with pytest.raises(BadRequest, match=f"the context holds {engine.loaded.context_length}"):
        engine.generate("x" * 3000, SHORT)


@pytest.mark.parametrize(
    ("prompt", "config", "word"),
    [
        ("", SHORT, "empty"),
        ("  \n", SHORT, "empty"),
        ("Hello", GenerationConfig(block_size=9), "trained for blocks of 8"),
        ("Hello", GenerationConfig(thinking=True), "no thinking mode"),
        ("Hello", GenerationConfig(sampling=SamplingConfig(logit_bias={999: 1.0})), "260 tokens"),
        ([{"role": "user", "content": "Hello"}], GenerationConfig(chat_template=False), "template"),
    ],
)
def test_unsupported_options_are_refused_by_name(engine, prompt, config, word):
    """An unsupported option was ignored."""
    with pytest.raises(BadRequest, match=word):
        engine.generate(prompt, config)


def test_a_block_without_a_draft_is_refused():
    """A block size without a draft decoded without speculation and without an error."""
    worker = Worker("plain")
    with Engine(
        worker.run(lambda: loaded_pair(Pair(tiny_target("qwen3")))), worker
    ) as plain_engine:
        with pytest.raises(BadRequest, match="there is no draft"):
            plain_engine.generate("Hello", GenerationConfig(block_size=4))
        result = plain_engine.generate("Hello", SHORT)
    assert result.stats.path == "plain"
    assert result.draft is None


@pytest.mark.parametrize("extra", [40, 200, 300])
def test_the_byte_budget_bounds_the_context_and_ends_with_length(extra):
    """Caches grew past the budget, or an error in the middle lost the answer."""
    worker = Worker("budget")

    def make():
        pair = _pair()
        row_bytes = pair.target.shape.row_bytes + pair.draft.row_bytes
        return loaded_pair(pair, cache_config=CacheConfig(max_bytes=(512 + extra) * row_bytes))

    with Engine(worker.run(make), worker) as bounded:
        assert bounded.loaded.context_length == extra
        session = bounded.session()
        chunks = list(session.stream("x", GenerationConfig(max_tokens=900)))
        result = chunks[-1].result
        assert any(chunk.notice and "room for" in chunk.notice for chunk in chunks)
        assert result.finish_reason == "length"
        assert result.prompt_tokens + result.generated_tokens == extra + 1
        assert session._prefix_cache.nbytes <= bounded.loaded.cache_config.max_bytes
        with pytest.raises(BadRequest, match=f"the context holds {extra}"):
            bounded.generate("x" * 400, SHORT)


def test_requests_to_a_closed_engine_raise():
    """A request to a closed engine waited for ever."""
    worker = Worker("closed")
    engine = Engine(worker.run(lambda: loaded_pair(Pair(tiny_target("qwen3")))), worker)
    stream = engine.stream("Hello", GenerationConfig(max_tokens=900))
    engine.close()
    assert stream.result().finish_reason == "cancelled"
    for use in (lambda: engine.generate("Hello", SHORT), lambda: engine.loaded):
        with pytest.raises(DFlashError, match="closed"):
            use()


def test_statistics_of_a_request_are_consistent(engine):
    """Counters of one request contradicted each other."""
    stats = engine.generate("Hello", GenerationConfig(max_tokens=60)).stats
    assert stats.path == "dflash"
    assert stats.block_size == 8
    # a few rounds time their draft apart
    assert stats.rounds <= stats.host_reads < 1.1 * stats.rounds
    assert sum(stats.accepted_lengths.values()) <= stats.rounds
    assert sum(n * count for n, count in stats.accepted_lengths.items()) == stats.accepted
    assert stats.acceptance == stats.accepted / stats.drafted
    assert stats.tokens_per_round == 60 / stats.rounds
    assert 0 < stats.draft_s < stats.decode_s
    assert stats.draft_s + stats.verify_s == pytest.approx(stats.decode_s)
