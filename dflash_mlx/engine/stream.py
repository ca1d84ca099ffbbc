"""What a request gives back: chunks while it runs, a result when it is done."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dflash_mlx.engine.feed import Feed
from dflash_mlx.engine.stats import Stats

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Result:
    """A finished answer.

    `tokens` are the ids behind `text`, without the end token. `finish_reason` is "stop" for an
    end token or a stop string, "length" for the limit or a full context.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    model: str
    draft: str | None
    seed: int | None
    stats: Stats

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer in progress.

    `text` is new text, all of it thought or none (`thinking`), `tokens` the ids committed in the
    round that gave it. `progress` counts prompt rows read, `notice` is a word to the user. The
    last chunk carries the `result`.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    thinking: bool = False
    progress: tuple[int, int] | None = None
    notice: str | None = None
    result: Result | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it has not."""
        return self.result.finish_reason if self.result else None


class Stream:
    """The chunks of one request, for `for` and `async for`, from any thread.

    Leaving the loop early, letting go of the stream, `close()` and `cancel()` all stop the
    request within a round.
    """

    def __init__(self, start: Callable[[Feed[Chunk], threading.Event], None]) -> None:
        self._cancelled = threading.Event()
        self._feed: Feed[Chunk] = Feed()
        self._result: Result | None = None
        self._chunks = iter(self._feed)
        weakref.finalize(self, self._cancelled.set)
        start(self._feed, self._cancelled)

    def __iter__(self) -> "Stream":
        return self  # and no generator, which would outlive a loop that was left

    def __next__(self) -> Chunk:
        return self._seen(next(self._chunks))

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        self._feed.watch(tell)
        try:
            while not self._feed.over:
                await news.wait()
                news.clear()
                for chunk in self._feed.ready():
                    yield self._seen(chunk)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop the request at the end of its round; what is committed stays."""
        self._cancelled.set()

    close = cancel

    def result(self) -> Result:
        """Wait for the end of the answer and return it.

        Raises:
            BaseException: whatever the request failed with.
        """
        for chunk in self._feed:
            self._seen(chunk)
        assert self._result is not None, "a feed without an error ends with a result"
        return self._result

    def _seen(self, chunk: Chunk) -> Chunk:
        self._result = chunk.result or self._result
        return chunk
