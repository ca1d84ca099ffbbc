"""The in-process client: what OpenAI's own client returns, from an engine of this process."""

import asyncio
import json
from dataclasses import replace

import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.openai import AsyncClient, Client, client
from dflash_mlx.openai.request import UNLIMITED, chat_request
from tests.engine.test_chat import ANSWER, HI, qwen3_tokenizer
from tests.engine.test_templates_in_sessions import forced, open_engine
from tests.loading.test_chat_template import TOOLS

types = pytest.importorskip("openai.types.chat", reason="the package openai is not installed")


@pytest.fixture(scope="module")
def tokenizer():
    return qwen3_tokenizer()


@pytest.fixture(scope="module")
def engine(tokenizer):
    with open_engine("qwen3", tokenizer) as made:
        yield made


@pytest.fixture
def writes(monkeypatch, tokenizer):
    """Makes the model write a text, whatever the request."""

    def use(text):
        def scripted(body, defaults):
            request = chat_request(body, defaults)
            config = replace(request.config, logits_processors=(forced(tokenizer, text),))
            return replace(request, config=config)

        monkeypatch.setattr(client, "chat_request", scripted)

    return use


def test_an_answer_is_openais_own_type(engine, writes):
    """Agents read attributes of the package's types, not keys."""
    writes(ANSWER)
    answer = Client(engine).chat.completions.create(messages=HI, tools=TOOLS, model="gpt-5")
    assert isinstance(answer, types.ChatCompletion)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Looking."
    assert choice.message.reasoning_content == "hm"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chunks_joined_equal_the_whole_answer(engine, writes):
    """A client that streams must see the same content, reasoning and calls."""
    writes(ANSWER)
    completions = Client(engine).chat.completions
    whole = completions.create(messages=HI, tools=TOOLS).choices[0]
    chunks = list(completions.create(messages=HI, tools=TOOLS, stream=True))
    assert all(isinstance(chunk, types.ChatCompletionChunk) for chunk in chunks)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert "".join(delta.content or "" for delta in deltas) == whole.message.content
    reasoning = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(reasoning) == whole.message.reasoning_content
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (calls[0].index, calls[0].function.name) == (0, "weather")
    assert calls[0].id.startswith("call_")
    assert all(call.id is None for call in calls[1:])
    arguments = "".join(call.function.arguments for call in calls)
    assert json.loads(arguments) == {"city": "Paris"}
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_conversation_goes_on_with_the_clients_own_messages(engine, writes):
    """Agents append the message object that they received."""
    writes(ANSWER)
    completions = Client(engine).chat.completions
    message = completions.create(messages=HI, tools=TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "20 C"}
    writes("It is 20 C.")
    answer = completions.create(messages=[*HI, message, result], tools=TOOLS)
    assert answer.choices[0].message.content == "It is 20 C."
    assert answer.usage.prompt_tokens_details.cached_tokens > 400


def test_usage_comes_last_where_it_is_asked_for(engine, writes):
    """Clients that ask for usage wait for a chunk without choices."""
    writes("Hello.")
    stream = Client(engine).chat.completions.create(
        messages=HI, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert last.choices == []
    assert last.usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks)


def test_async_answers_and_streams(engine, writes):
    """A blocking call in an event loop stops every other task of the agent."""
    writes("Hello.")
    completions = AsyncClient(engine).chat.completions

    async def both():
        answer = await completions.create(messages=HI)
        chunks = [chunk async for chunk in await completions.create(messages=HI, stream=True)]
        return answer, chunks

    answer, chunks = asyncio.run(both())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == answer.choices[0].message.content == "Hello."


def test_a_stream_that_is_closed_stops_its_request(engine):
    """An agent that stops reading would leave the model writing to its limit."""
    with Client(engine).chat.completions.create(messages=HI, stream=True, max_tokens=900) as stream:
        next(stream)
    assert stream._events.result().finish_reason == "cancelled"


def test_without_the_package_answers_have_the_same_attributes(engine, writes, monkeypatch):
    """The package is optional."""
    monkeypatch.setattr(client, "find_spec", lambda name: None)
    writes("Hello.")
    answer = Client(engine).chat.completions.create(messages=HI)
    assert not isinstance(answer, types.ChatCompletion)
    assert answer.choices[0].message.content == "Hello."


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": []}, "messages is missing or empty"),
        ({"messages": HI, "n": 2}, "n is 2"),
        ({"messages": HI, "logprobs": True}, "logprobs is True"),
        ({"messages": HI, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": HI, "stop": [""]}, "stop"),
        ({"messages": HI, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": HI, "logit_bias": {"x": 1}}, "logit_bias"),
        ({"messages": HI, "temperature": "hot"}, "temperature"),
        ({"messages": HI, "reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"messages": HI, "tool_choice": "required", "tools": TOOLS}, "required"),
        ({"messages": HI, "prediction": {"content": [{"type": "image"}]}}, "prediction"),
        ({"messages": HI, "functions": [{}]}, "use tools"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_refused_by_name(engine, body, named):
    """An option that is dropped in silence changes the answer."""
    with pytest.raises(BadRequest, match=named):
        Client(engine).chat.completions.create(**body)


def test_null_equals_absent_and_an_absent_limit_fills_the_context(engine):
    """Clients send null for every option that was not set."""
    names = ("temperature", "max_tokens", "stop", "seed", "tools", "stream", "logit_bias", "n")
    request = chat_request({"messages": HI, **dict.fromkeys(names)}, engine.loaded.sampling)
    assert request.config.max_tokens == UNLIMITED
    assert request.config.sampling is None
    assert (request.stream, request.tools, request.config.stop) == (False, None, ())
