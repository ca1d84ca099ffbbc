"""`Client` and `AsyncClient`: the calls of OpenAI's Python client on an engine of this process.

Answers are the `openai` package's own types where it is installed, else objects with the same
attributes. It must not know how requests and answers are translated.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Self

from dflash_mlx.engine.chat import ChatStream
from dflash_mlx.engine.engine import Engine
from dflash_mlx.openai.request import ChatRequest, chat_request
from dflash_mlx.openai.response import ChunkWriter, completion, new_id


class ChatCompletionStream:
    """The chunks of one answer. Leaving the loop early, or `close()`, stops the request."""

    def __init__(self, events: ChatStream, writer: ChunkWriter) -> None:
        self._events = events
        self._writer = writer
        self._chunks = self._written()

    def __iter__(self) -> Iterator[Any]:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for event in self._events:
            for chunk in self._writer.write(event):
                yield _typed("ChatCompletionChunk", chunk)

    def close(self) -> None:
        """Stop the request at the end of its round."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _written(self) -> Iterator[Any]:
        for event in self._events:
            for chunk in self._writer.write(event):
                yield _typed("ChatCompletionChunk", chunk)


class Completions:
    """`client.chat.completions`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, **body: Any) -> Any:
        """Answer a conversation.

        Args:
            body: the fields of OpenAI's request: `messages`, `tools`, `temperature`, `stream`,
                and so on. `model` is ignored: the engine has one.

        Returns:
            A `ChatCompletion`, or a `ChatCompletionStream` with `stream=True`.

        Raises:
            BadRequest: a field has a wrong value or asks for something that is not supported.
        """
        request, events = _start(self._engine, body)
        if request.stream:
            return ChatCompletionStream(events, _writer(self._engine, request))
        return _answer(self._engine, events.result())


class AsyncCompletions:
    """`async_client.chat.completions`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(self, **body: Any) -> Any:
        """Answer a conversation without blocking the event loop; see `Completions.create`."""
        request, events = _start(self._engine, body)
        if request.stream:
            return ChatCompletionStream(events, _writer(self._engine, request))
        return _answer(self._engine, await events.result_async())


class Client:
    """The part of `openai.OpenAI` that agents use, on an engine of this process.

    Args:
        engine: answers the requests; several clients may share it.

    Examples:
        >>> from dflash_mlx.openai import Client
        >>> client = Client(engine)
        >>> answer = client.chat.completions.create(
        ...     messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0
        ... )
        >>> answer.choices[0].finish_reason
        'length'
    """

    def __init__(self, engine: Engine) -> None:
        self.chat = SimpleNamespace(completions=Completions(engine))


class AsyncClient:
    """The part of `openai.AsyncOpenAI` that agents use, on an engine of this process.

    Args:
        engine: answers the requests; several clients may share it.

    Examples:
        >>> from dflash_mlx.openai import AsyncClient
        >>> client = AsyncClient(engine)
        >>> answer = client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        >>> answer.close()  # await it in an event loop
    """

    def __init__(self, engine: Engine) -> None:
        self.chat = SimpleNamespace(completions=AsyncCompletions(engine))


def _start(engine: Engine, body: Mapping[str, Any]) -> tuple[ChatRequest, ChatStream]:
    request = chat_request(body, engine.loaded.sampling)
    messages, tools = list(request.messages), request.tools
    events = engine.chat_stream(messages, tools, request.tool_choice, request.config)
    return request, events


def _writer(engine: Engine, request: ChatRequest) -> ChunkWriter:
    return ChunkWriter(engine.loaded.model_name, request.include_usage)


def _answer(engine: Engine, result: Any) -> Any:
    return _typed("ChatCompletion", completion(result, new_id(), engine.loaded.model_name))


def _typed(name: str, values: dict[str, Any]) -> Any:
    """Return `values` as the `openai` package's type `name`, or as nested attributes."""
    if find_spec("openai") is None:
        return _attributes(values)
    from openai.types import chat

    return getattr(chat, name).model_validate(values)


def _attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _attributes(item) for key, item in value.items()})
    return [_attributes(item) for item in value] if isinstance(value, list) else value
