"""Chat: events, tool calls and reasoning of an engine with real rendering and parsing."""

import asyncio
import json

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerFast

from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.chat import ChatStream, Done, PromptProgress
from dflash_mlx.engine.events import ContentDelta, ReasoningDelta, ToolCallDelta
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.tokenizer import Tokenizer
from tests.engine.test_templates_in_sessions import forced, open_engine
from tests.loading.byte_level import byte_level, raw_tokenizer
from tests.loading.test_chat_template import TEMPLATES, TOOLS

HI = [{"role": "user", "content": "Weather in Paris?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ANSWER = f"<think>\nhm\n</think>\n\nLooking.\n{CALL}"


def qwen3_tokenizer():
    """A tokenizer as mlx-lm makes it for a model with Qwen3's template."""
    raw = raw_tokenizer(
        ("<|im_end|>", "<|im_start|>"), ("<think>", "</think>", "<tool_call>", "</tool_call>")
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", chat_template=TEMPLATES["qwen3"]
    )
    return Tokenizer(TokenizerWrapper(fast))


@pytest.fixture(scope="module")
def tokenizer():
    return qwen3_tokenizer()


@pytest.fixture(scope="module")
def engine(tokenizer):
    with open_engine("qwen3", tokenizer) as made:
        yield made


def writes(tokenizer, text, **options):
    """A configuration with which the model writes `text`."""
    return GenerationConfig(logits_processors=(forced(tokenizer, text),), **options)


def test_a_call_is_parsed_and_joins_the_conversation(engine, tokenizer):
    """Tool calls were text that the caller had to find."""
    session = engine.session(system="Be brief.")
    result = session.chat("Weather in Paris?", TOOLS, config=writes(tokenizer, ANSWER))
    assert (result.content, result.reasoning) == ("Looking.", "hm")
    assert result.finish_reason == "tool_calls"
    (call,) = result.tool_calls
    assert (call.name, call.arguments) == ("weather", {"city": "Paris"})
    message = session.messages[-1]
    assert message == result.message
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    answered = [*session.messages, {"role": "tool", "tool_call_id": call.id, "content": "20 C"}]
    final = session.chat(answered, TOOLS, config=writes(tokenizer, "It is 20 C."))
    assert (final.content, final.tool_calls, final.finish_reason) == ("It is 20 C.", (), "stop")
    assert final.cached_tokens > 500
    assert [m["role"] for m in session.messages] == [
        *("system", "user", "assistant", "tool", "assistant")
    ]


def test_the_stream_has_the_same_parts_as_the_result(engine, tokenizer):
    """Streaming and blocking callers saw different answers."""
    events = list(engine.chat_stream(HI, TOOLS, config=writes(tokenizer, ANSWER)))
    assert any(isinstance(event, PromptProgress) for event in events)
    result = events[-1].result
    assert "".join(e.text for e in events if isinstance(e, ContentDelta)) == result.content
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == result.reasoning
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert len(deltas) > 3, "arguments arrive while they are written"
    assert json.loads("".join(delta.arguments for delta in deltas)) == {"city": "Paris"}
    assert {delta.id for delta in deltas} == {result.tool_calls[0].id}
    assert [delta.name for delta in deltas if delta.name] == ["weather"]


def test_async_callers_get_events_and_results(engine, tokenizer):
    """A web handler has no thread to block."""

    async def read():
        stream = engine.chat_stream(HI, TOOLS, config=writes(tokenizer, ANSWER))
        events = [event async for event in stream]
        again = engine.chat_stream(HI, TOOLS, config=writes(tokenizer, ANSWER))
        return events, await again.result_async()

    events, result = asyncio.run(read())
    assert isinstance(events[-1], Done)
    assert events[-1].result.content == result.content == "Looking."


def test_a_stream_that_is_left_stops_its_request(engine):
    """An abandoned chat kept the worker busy."""
    session = engine.session()
    for event in session.chat_stream(HI, config=GenerationConfig(max_tokens=700)):
        if isinstance(event, ContentDelta | ReasoningDelta):
            break
    engine.worker.run(lambda: None)
    assert isinstance(session.chat_stream("x", config=GenerationConfig(max_tokens=1)), ChatStream)


def test_tool_choice_none_leaves_the_tools_out(engine, tokenizer):
    """With tools in the prompt a model calls them all the same."""
    config = GenerationConfig(max_tokens=1)
    without = engine.chat(HI, config=config).prompt_tokens
    assert engine.chat(HI, TOOLS, "none", config).prompt_tokens == without
    assert engine.chat(HI, TOOLS, "auto", config).prompt_tokens > without + 100


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice is 'required'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}}, "now"),
        ({"tools": [{"type": "web_search"}]}, "tool 0 is 'web_search'"),
        ({"tools": [{"type": "function", "function": {}}]}, "function with a name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "strict"),
        ({"config": GenerationConfig(chat_template=False)}, "chat template"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(engine, options, named):
    """An unsupported option or tool was ignored."""
    with pytest.raises(BadRequest, match=named):
        engine.chat(HI, **options)


def test_tools_need_a_template_that_renders_them():
    """A model that never saw the tools invented calls."""
    plain = byte_level(TEMPLATES["chatml"], ("<|im_end|>", "<|im_start|>"))
    with open_engine("qwen3", plain) as engine, pytest.raises(BadRequest, match="render tools"):
        engine.chat(HI, TOOLS)


@pytest.mark.parametrize("block", [1, None])
@pytest.mark.parametrize(
    ("stops", "stop", "content"),
    [
        ((*(f"zzz{n}" for n in range(15)), "okin"), "okin", "Lo"),
        (("ing", "ki"), "ki", "Loo"),
        (("<|im_start|>",), None, "Looking"),
    ],
)
def test_the_stop_string_is_in_the_result(engine, tokenizer, stops, stop, content, block):
    """Clients with several stop strings need the one that ended the answer."""
    config = writes(tokenizer, "Looking", stop=stops, block_size=block)
    result = engine.chat(HI, config=config)
    assert (result.stop, result.content) == (stop, content)
    assert result.finish_reason == "stop"


def test_a_stop_that_is_a_token_is_named_too(engine, tokenizer):
    """A special token ends the answer without leaving text."""
    marked = "Hi<|im_start|>more"
    result = engine.chat(HI, config=writes(tokenizer, marked, stop=("<|im_start|>",)))
    assert (result.stop, result.content) == ("<|im_start|>", "Hi")


def test_a_call_cut_by_the_limit_is_text(engine, tokenizer):
    """A call that ended at the token limit lost the answer."""
    result = engine.chat(HI, TOOLS, config=writes(tokenizer, CALL, max_tokens=40))
    assert (result.tool_calls, result.finish_reason) == ((), "length")
    assert result.content.startswith('{"name": "weather"')


def test_the_result_is_there_for_a_stream_that_was_read_in_part(engine, tokenizer):
    """Callers read the first events and then want the whole answer."""
    stream = engine.chat_stream(HI, config=writes(tokenizer, "one two three"))
    next(stream)
    assert stream.result().content == "one two three"
