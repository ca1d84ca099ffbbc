"""A conversation: the KV caches of both models kept from turn to turn, one answer at a time.

Cached rows are matched by token ids, never by text: a turn reuses the longest common prefix of
the cached tokens and the rendered prompt, and prefills the rest.
"""

import threading
from collections.abc import Sequence
from itertools import takewhile

from dflash_mlx.cache import PairCache
from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.autotune import autotune_between_requests
from dflash_mlx.engine.closable_queue import ClosableQueue
from dflash_mlx.engine.generation import Generation
from dflash_mlx.engine.loaded import LoadedPair, Prompt
from dflash_mlx.engine.resolved_request import ResolvedRequest, check_prompt, resolve_request
from dflash_mlx.engine.stream import Chunk, Result, Stream
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.tokenizer import Message
from dflash_mlx.system.memory import wired


class Session:
    """One conversation with an engine. Threads may share it; their turns run one after another.

    `messages` holds the conversation so far. `system` is put in front of the first turn.
    """

    def __init__(self, loaded: LoadedPair, worker: Worker, system: str | None = None) -> None:
        self.system = system
        self.messages: list[Message] = []
        self._cached_ids: tuple[int, ...] = ()
        self._loaded = loaded
        self._worker = worker
        self._cache: PairCache | None = None  # made by the first turn, on the worker thread

    def stream(self, prompt: Prompt, config: GenerationConfig | None = None) -> Stream:
        """Answer `prompt` and return the stream of chunks.

        The turn is added to `messages` when it is done.

        Args:
            prompt: the next user turn as text, or a whole conversation as messages.
            config: options of the request; None takes the defaults.

        Raises:
            BadRequest: an option that this pair does not support. A prompt that is too long, or
                that the chat template refuses, raises it when the stream is read.
        """
        request = resolve_request(self._loaded, config)
        check_prompt(prompt)

        def start(chunks: ClosableQueue[Chunk], cancelled: threading.Event) -> None:
            self._worker.submit(lambda: self._serve(prompt, request, chunks, cancelled), cancelled)

        return Stream(start)

    def generate(self, prompt: Prompt, config: GenerationConfig | None = None) -> Result:
        """Answer `prompt` and return the whole answer; raises what `stream` raises."""
        return self.stream(prompt, config).result()

    def reset(self) -> None:
        """Clear the conversation and free its KV caches."""

        def clear() -> None:
            self.messages, self._cached_ids, self._cache = [], (), None

        self._worker.run(clear)

    def _serve(
        self,
        prompt: Prompt,
        request: ResolvedRequest,
        chunks: ClosableQueue[Chunk],
        cancelled: threading.Event,
    ) -> None:
        """Serve one turn on the worker thread; every error goes to the reader of `chunks`."""
        try:
            messages = self._conversation(prompt)
            ids = self._ids(prompt, messages, request)
            generation = Generation(self._loaded, request, ids, chunks, cancelled)
            cache = self._cache or self._loaded.pair.make_cache(self._loaded.cache_config.max_bytes)
            self._cache = cache
            cached = cache.trim_to(_common_length(self._cached_ids, ids[:-1]))
            try:
                with wired():
                    result = generation.run(cache, cached, self._stable(ids, messages, request))
            finally:
                self._cached_ids = generation.history[: cache.length]
            if request.chat_template and (result.text or result.finish_reason != "cancelled"):
                self.messages = [*messages, {"role": "assistant", "content": result.text}]
            chunks.put(Chunk(result=result))
            chunks.end()
            autotune_between_requests(self._loaded, self._worker)
        except BaseException as error:  # noqa: BLE001  raised again where the chunks are read
            chunks.end(error)

    def _conversation(self, prompt: Prompt) -> list[Message]:
        """Return the messages up to and with `prompt`, the system message first."""
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
        self, prompt: Prompt, messages: Sequence[Message], request: ResolvedRequest
    ) -> list[int]:
        if request.chat_template:
            return self._loaded.tokenizer.render(messages, request.thinking)
        if self.system:
            raise BadRequest("a system message needs the chat template; leave one of them out")
        if isinstance(prompt, str):
            return self._loaded.tokenizer.encode(prompt)
        raise BadRequest("messages need the chat template; give plain text without it")

    def _stable(
        self, ids: Sequence[int], messages: Sequence[Message], request: ResolvedRequest
    ) -> int:
        """Return how many tokens of this prompt the next prompt starts with.

        A template may open an answer differently from how it writes a finished one, for example
        with an empty thought.
        """
        end = len(ids) - 1
        if not request.chat_template:
            return end
        answered = [*messages, {"role": "assistant", "content": "."}]
        try:
            later = self._loaded.tokenizer.render(answered, request.thinking)
        except BadRequest:
            return end
        return _common_length(ids[:end], later)


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )
