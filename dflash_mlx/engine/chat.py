"""The events of one chat answer, for `for`, `async for` and blocking callers.

It must not know how an answer is generated or parsed.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from dflash_mlx.engine.events import AnswerEvent
from dflash_mlx.engine.stream import Chunk, Result, Stream


@dataclass(frozen=True)
class PromptProgress:
    """How much of the prompt is read.

    Args:
        done: prompt tokens read so far.
        total: prompt tokens to read; those in the prefix cache do not count.

    Examples:
        >>> from dflash_mlx import PromptProgress
        >>> PromptProgress(done=512, total=2048).total
        2048
    """

    done: int
    total: int


@dataclass(frozen=True)
class Notice:
    """A line for the user.

    Args:
        text: the line.

    Examples:
        >>> from dflash_mlx import Notice
        >>> Notice("the context has room for 7 more tokens").text
        'the context has room for 7 more tokens'
    """

    text: str


@dataclass(frozen=True)
class Done:
    """The end of the answer.

    Args:
        result: the whole answer.

    Examples:
        >>> from dflash_mlx import Done
        >>> messages = [{"role": "user", "content": "Say hello."}]
        >>> list(engine.chat_stream(messages, config=short))[-1].result.finish_reason
        'length'
    """

    result: Result


ChatEvent = AnswerEvent | PromptProgress | Notice | Done
"""What happens during a request; `Done` is the last event."""


class ChatStream:
    """The events of one chat request, for `for` and `async for`, on any thread.

    The request stops within one round when the loop is left early, when the stream is deleted,
    and after `close()` or `cancel()`.

    Examples:
        >>> from dflash_mlx import ContentDelta
        >>> events = engine.chat_stream([{"role": "user", "content": "Hi"}], config=short)
        >>> text = "".join(event.text for event in events if isinstance(event, ContentDelta))
        >>> text == events.result().content
        True
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting: list[ChatEvent] = []

    def __iter__(self) -> "ChatStream":
        return self

    def __next__(self) -> ChatEvent:
        while True:
            try:
                return self._waiting.pop(0)
            except IndexError:  # another thread may have taken the last one
                self._waiting += _events(next(self._stream))

    async def __aiter__(self) -> AsyncIterator[ChatEvent]:
        async for chunk in self._stream:
            for event in _events(chunk):
                yield event

    def cancel(self) -> None:
        """Stop the request at the end of its round; committed tokens are kept."""
        self._stream.cancel()

    close = cancel

    def result(self) -> Result:
        """Wait for the end of the answer and return it.

        Raises:
            BaseException: the error that ended the request.
        """
        return self._stream.result()

    async def result_async(self) -> Result:
        """Return the answer when it is finished, without blocking the event loop.

        Raises:
            BaseException: the error that ended the request.
        """
        async for _ in self._stream:
            pass
        return self._stream.result()


def _events(chunk: Chunk) -> list[ChatEvent]:
    events: list[ChatEvent] = list(chunk.events)
    if chunk.progress is not None:
        events.append(PromptProgress(*chunk.progress))
    if chunk.notice is not None:
        events.append(Notice(chunk.notice))
    if chunk.result is not None:
        events.append(Done(chunk.result))
    return events
