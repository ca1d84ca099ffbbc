"""What a request gives back: chunks while it runs, a result when it is done."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dflash_mlx.stats import Stats
from dflash_mlx.worker import Feed

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

    Leaving the loop early, `close()` and `cancel()` all stop the request within a round.
    """

    def __init__(self, start: Callable[[Feed[Chunk], threading.Event], None]) -> None:
        self._cancelled = threading.Event()
        self._feed: Feed[Chunk] = Feed()
        self._result: Result | None = None
        start(self._feed, self._cancelled)
        self._chunks = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while (chunk := await asyncio.to_thread(next, self._chunks, None)) is not None:
                yield chunk
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop the request at the end of its round; what is committed stays."""
        self._cancelled.set()

    close = cancel

    def result(self) -> Result:
        """Wait for the end of the answer and return it.

        Raises:
            DFlashError: whatever the request failed with.
        """
        for _ in self._chunks:
            pass
        assert self._result is not None, "the stream was closed before its end"
        return self._result

    def _read(self) -> Iterator[Chunk]:
        try:
            for chunk in self._feed:
                self._result = chunk.result or self._result
                yield chunk
        finally:
            self.cancel()
