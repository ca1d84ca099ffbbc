"""A conversation: rows of both models kept from turn to turn, one answer at a time.

Rows are matched by token ids, never by text: a turn reuses the longest common prefix of what
the caches hold and what the template renders now, and prefills the rest.
"""

import threading
from collections.abc import Sequence
from itertools import takewhile

from dflash_mlx.cache import PairCache
from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.autotune import race_between
from dflash_mlx.engine.feed import Feed
from dflash_mlx.engine.loaded import LoadedPair, Prompt
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.stream import Chunk, Result, Stream
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.tokenizer import Message
from dflash_mlx.system.memory import wired


class Session:
    """One conversation with an engine. Safe to use from several threads; turns queue up.

    `messages` is the conversation so far. `system` is put in front of the first turn.
    """

    def __init__(self, loaded: LoadedPair, worker: Worker, system: str | None = None) -> None:
        self.system = system
        self.messages: list[Message] = []
        self._rows: tuple[int, ...] = ()  # the token of every committed row
        self._loaded = loaded
        self._worker = worker
        self._cache: PairCache | None = None  # made where the models live, with the first turn

    def stream(self, prompt: Prompt, config: GenerationConfig | None = None) -> Stream:
        """Answer `prompt`, chunk by chunk; the turn joins `messages` when it is done.

        Raises:
            BadRequest: an option that this pair cannot honour; what only the tokens show (a
                prompt that is too long, say) is raised by the stream.
        """
        config = config or GenerationConfig()
        self._loaded.check(prompt, config)

        def start(feed: Feed[Chunk], cancelled: threading.Event) -> None:
            self._worker.submit(lambda: self._serve(prompt, config, feed, cancelled), cancelled)

        return Stream(start)

    def generate(self, prompt: Prompt, config: GenerationConfig | None = None) -> Result:
        """Answer `prompt` and return the whole answer; raises what `stream` raises."""
        return self.stream(prompt, config).result()

    def reset(self) -> None:
        """Forget the conversation and free its rows."""

        def forget() -> None:
            self.messages, self._rows, self._cache = [], (), None

        self._worker.run(forget)

    def _serve(
        self,
        prompt: Prompt,
        config: GenerationConfig,
        feed: Feed[Chunk],
        cancelled: threading.Event,
    ) -> None:
        """Serve one turn on the worker thread; every error goes to the consumer."""
        try:
            messages = self._conversation(prompt)
            ids = self._ids(prompt, messages, config)
            request = Request(self._loaded, ids, config, feed, cancelled)
            cache = self._cache or self._loaded.pair.make_cache(self._loaded.cache_config.max_bytes)
            self._cache = cache
            cached = cache.trim_to(_common(self._rows, ids[:-1]))
            try:
                with wired():
                    result = request.run(cache, cached, self._stable(ids, messages, config))
            finally:
                self._rows = request.history[: cache.length]
            if config.chat_template and (result.text or result.finish_reason != "cancelled"):
                self.messages = [*messages, {"role": "assistant", "content": result.text}]
            feed.put(Chunk(result=result))
            feed.end()
            race_between(self._loaded, self._worker)
        except BaseException as error:  # noqa: BLE001  raised again where the chunks are read
            feed.end(error)

    def _conversation(self, prompt: Prompt) -> list[Message]:
        """Return the messages that `prompt` leads to, the system message in front."""
        if not isinstance(prompt, str):
            if self.system:
                raise BadRequest(
                    "this session has a system message and the prompt is a whole conversation; "
                    "put the system message there"
                )
            return list(prompt)
        before = list(self.messages)
        if not before and self.system:
            before = [{"role": "system", "content": self.system}]
        return [*before, {"role": "user", "content": prompt}]

    def _ids(
        self, prompt: Prompt, messages: Sequence[Message], config: GenerationConfig
    ) -> list[int]:
        if config.chat_template:
            return self._loaded.tokenizer.render(messages, self._loaded.thinking(config))
        if self.system:
            raise BadRequest("a system message needs the chat template; leave one of them out")
        if isinstance(prompt, str):
            return self._loaded.tokenizer.encode(prompt)
        raise BadRequest("messages need the chat template; give plain text without it")

    def _stable(
        self, ids: Sequence[int], messages: Sequence[Message], config: GenerationConfig
    ) -> int:
        """Return how many tokens of a prompt the next one will begin with.

        A template may open the answer otherwise than it writes a finished one, with an empty
        thought for instance.
        """
        end = len(ids) - 1
        if not config.chat_template:
            return end
        answered = [*messages, {"role": "assistant", "content": "."}]
        try:
            later = self._loaded.tokenizer.render(answered, self._loaded.thinking(config))
        except BadRequest:
            return end
        return _common(ids[:end], later)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )
