"""The answer to a request: chunks while it is generated, then a result.

It must not know how an answer is generated.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dflash_mlx.engine.closable_queue import ClosableQueue
from dflash_mlx.engine.events import AnswerEvent, ToolCall
from dflash_mlx.engine.messages import assistant_message
from dflash_mlx.engine.stats import Stats
from dflash_mlx.engine.worker import check_process

FinishReason = Literal["stop", "length", "cancelled", "tool_calls"]


@dataclass(frozen=True)
class CacheMiss:
    """Where a prompt differs from the cached conversation that is most like it.

    Args:
        position: number of equal tokens before the first different one.
        message: index of the message with that token; None without a chat template.
        role: role of that message.

    Examples:
        >>> from dflash_mlx.engine.stream import CacheMiss
        >>> CacheMiss(position=12, message=0, role="system").role
        'system'
    """

    position: int
    message: int | None = None
    role: str | None = None


@dataclass(frozen=True)
class Result:
    """A finished answer.

    Args:
        text: the answer as the model wrote it, thoughts and marks included.
        content: the answer without thoughts, tool calls and marks.
        reasoning: the thoughts without marks.
        tool_calls: the tool calls, where tools were offered.
        tokens: the ids of `text`, without the end token.
        finish_reason: "stop" for an end token or a stop string, "length" for the token limit or
            a full context, "cancelled" if the request was cancelled, "tool_calls" if the answer
            ended with tool calls.
        stop: the stop string that ended the answer; None if another cause did.
        prompt_tokens: tokens of the prompt.
        cached_tokens: prompt tokens that were in the target's KV cache already.
        draft_cached_tokens: those of them for which the draft's context has rows.
        cache_miss: why fewer tokens were cached than the prompt shares with an earlier one; None
            where all were used.
        generated_tokens: number of `tokens`.
        model: name of the target.
        draft: name of the draft; None without one.
        seed: seed of the random numbers; None for greedy decoding.
        stats: figures of the request.

    Examples:
        >>> result = engine.generate("Say hello.", short)
        >>> result.finish_reason in ("stop", "length")
        True
    """

    text: str
    content: str
    reasoning: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    prompt_tokens: int
    cached_tokens: int
    draft_cached_tokens: int
    generated_tokens: int
    model: str
    draft: str | None
    seed: int | None
    stats: Stats
    tool_calls: tuple[ToolCall, ...] = ()
    cache_miss: CacheMiss | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of OpenAI's API, to be appended to the conversation."""
        return assistant_message(self.content, self.reasoning, self.tool_calls)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer, or a progress report of the request.

    Args:
        text: new text of the answer.
        tokens: ids committed by the round that completed `text`.
        thinking: whether `text` is a thought, a call or a mark, and not part of the content.
        events: content, reasoning and tool calls of `text`.
        progress: prompt tokens read so far, and prompt tokens to read.
        notice: a line for the user.
        result: the finished answer; in the last chunk only.

    Examples:
        >>> chunks = list(engine.stream("Say hello.", short))
        >>> "".join(chunk.text for chunk in chunks) == chunks[-1].result.text
        True
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    thinking: bool = False
    events: tuple[AnswerEvent, ...] = ()
    progress: tuple[int, int] | None = None
    notice: str | None = None
    result: Result | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None before the last chunk."""
        return self.result.finish_reason if self.result else None


class Stream:
    """The chunks of one request, for `for` and `async for`, on any thread.

    Several threads may read one stream; each chunk goes to one of them.
    The request stops within one round when the loop is left early, when the stream is deleted,
    and after `close()` or `cancel()`.

    Examples:
        >>> stream = engine.stream("Say hello.", short)
        >>> for chunk in stream:
        ...     text = chunk.text
        >>> stream.result().model == engine.loaded.model_name
        True
    """

    def __init__(self, start: Callable[[ClosableQueue[Chunk], threading.Event], None]) -> None:
        self._cancelled = threading.Event()
        self._queue: ClosableQueue[Chunk] = ClosableQueue()
        self._pid = os.getpid()
        weakref.finalize(self, self._cancelled.set)
        start(self._queue, self._cancelled)

    def __iter__(self) -> "Stream":
        return self  # a generator would keep the request running after the loop was left

    def __next__(self) -> Chunk:
        check_process(self._pid)
        return next(self._queue)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        check_process(self._pid)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        self._queue.watch(notify)
        try:
            while not self._queue.over:
                await changed.wait()
                changed.clear()
                for chunk in self._queue.ready():
                    yield chunk
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop the request at the end of its round; committed tokens are kept."""
        self._cancelled.set()

    close = cancel

    def result(self) -> Result:
        """Wait for the end of the answer and return it.

        Raises:
            BaseException: the error that ended the request.
        """
        check_process(self._pid)
        for _ in self._queue:
            pass
        last = self._queue.last
        assert last is not None and last.result is not None, "a stream ends with a result"
        return last.result
