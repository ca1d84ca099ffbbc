"""A conversation: the KV caches of both models kept from turn to turn, one answer at a time.

Cached rows are matched by token ids, never by text: a turn reuses the longest common prefix of
the cached tokens and the rendered prompt, and prefills the rest.
"""

import threading
from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.autotune import autotune_between_requests
from dflash_mlx.engine.chat import ChatStream
from dflash_mlx.engine.closable_queue import ClosableQueue
from dflash_mlx.engine.generation import Generation
from dflash_mlx.engine.loaded import LoadedPair, Prompt
from dflash_mlx.engine.messages import (
    join_consecutive,
    normalise_messages,
    plain_message,
)
from dflash_mlx.engine.resolved_request import (
    ResolvedRequest,
    ToolChoice,
    check_prompt,
    resolve_request,
)
from dflash_mlx.engine.stream import CacheMiss, Chunk, Result, Stream
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.chat_template import Message
from dflash_mlx.prefix_cache.conversation import common_length, token_ids
from dflash_mlx.prefix_cache.pool import Lease, PrefixCache
from dflash_mlx.system.memory import wired


class Session:
    """One conversation with an engine. Threads may share it; their turns run one after another.

    `messages` holds the conversation so far. `system` is put in front of the first turn.

    Examples:
        >>> session = engine.session(system="Answer in one word.")
        >>> first = session.generate("What colour is the sky?", short)
        >>> session.generate("And grass?", short).cached_tokens > 0
        True
    """

    def __init__(
        self,
        loaded: LoadedPair,
        worker: Worker,
        prefix_cache: PrefixCache,
        system: str | None = None,
    ) -> None:
        self.system = system
        self.messages: list[Message] = []
        self._loaded = loaded
        self._worker = worker
        self._prefix_cache = prefix_cache
        self._lease: Lease | None = None  # of the last turn

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
        return self._start(prompt, resolve_request(self._loaded, config))

    def chat(
        self,
        prompt: Prompt,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = "auto",
        config: GenerationConfig | None = None,
    ) -> Result:
        """Answer `prompt` and return the whole answer with its tool calls; see `chat_stream`."""
        return self.chat_stream(prompt, tools, tool_choice, config).result()

    def chat_stream(
        self,
        prompt: Prompt,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = "auto",
        config: GenerationConfig | None = None,
    ) -> ChatStream:
        """Answer `prompt` and return the stream of events.

        The turn, with its tool calls, is added to `messages` when it is done. To answer a call,
        give `[*session.messages, {"role": "tool", "tool_call_id": ..., "content": ...}]`.

        Args:
            prompt: the next user turn as text, or a whole conversation as messages.
            tools: tools offered to the model, as OpenAI's API has them.
            tool_choice: "auto" offers the tools, "none" leaves them out of the prompt.
            config: options of the request; None takes the defaults.

        Raises:
            BadRequest: an option or a tool that this pair does not support. A conversation that
                the chat template refuses raises it when the stream is read.
        """
        request = resolve_request(self._loaded, config, tools, tool_choice)
        if not request.chat_template:
            raise BadRequest("chat needs the chat template; use stream for plain text")
        return ChatStream(self._start(prompt, request))

    def _start(self, prompt: Prompt, request: ResolvedRequest) -> Stream:
        check_prompt(prompt)

        def start(chunks: ClosableQueue[Chunk], cancelled: threading.Event) -> None:
            self._worker.serve(
                lambda: self._serve(prompt, request, chunks, cancelled), cancelled, self
            )

        return Stream(start)

    def generate(self, prompt: Prompt, config: GenerationConfig | None = None) -> Result:
        """Answer `prompt` and return the whole answer; raises what `stream` raises."""
        return self.stream(prompt, config).result()

    def reset(self) -> None:
        """Clear the conversation and free its KV caches, after the turns that were asked before."""

        def clear() -> Generator[None, None, None]:
            self.messages = []
            if self._lease is not None:
                self._prefix_cache.discard(self._lease)
                self._lease = None
            yield

        self._worker.serve(clear, threading.Event(), self).result()

    def _serve(
        self,
        prompt: Prompt,
        request: ResolvedRequest,
        chunks: ClosableQueue[Chunk],
        cancelled: threading.Event,
    ) -> Generator[None, None, None]:
        """Serve one turn in steps; every error goes to the reader of `chunks`."""
        try:
            messages = self._conversation(prompt)
            ids = self._ids(prompt, messages, request)
            generation = Generation(self._loaded, request, ids, chunks, cancelled)
            stable = self._stable(ids, messages, request)
            lease = self._lease = self._prefix_cache.acquire(ids, stable)
            try:
                with wired():
                    boundaries = self._boundaries(lease, ids, messages, request, stable)
                    result = yield from generation.steps(lease, boundaries)
            finally:
                self._prefix_cache.release(lease, generation.history)
            miss = self._miss(lease, ids, messages, request)
            result = replace(result, cache_miss=miss)
            if request.chat_template and (result.text or result.finish_reason != "cancelled"):
                self.messages = _with_answer(messages, result)
            chunks.put(Chunk(result=result))
            chunks.end()
            autotune_between_requests(self._loaded, self._worker)
        except BaseException as error:  # noqa: BLE001  raised again where the chunks are read
            chunks.end(error)

    def _conversation(self, prompt: Prompt) -> list[Message]:
        """Return the messages up to and with `prompt`, the system message first."""
        if not isinstance(prompt, str):
            if self.system and list(prompt)[:1] != self.messages[:1]:
                raise BadRequest(
                    "this session has a system message and the prompt is a whole conversation; "
                    "put the system message there"
                )
            return [plain_message(message) for message in prompt]
        before = list(self.messages)
        if not before and self.system:
            before = [{"role": "system", "content": self.system}]
        return [*before, {"role": "user", "content": prompt}]

    def _ids(
        self, prompt: Prompt, messages: Sequence[Message], request: ResolvedRequest
    ) -> list[int]:
        if request.chat_template:
            return self._render(messages, request)
        if self.system:
            raise BadRequest("a system message needs the chat template; leave one of them out")
        if isinstance(prompt, str):
            return self._loaded.tokenizer.encode(prompt)
        raise BadRequest("messages need the chat template; give plain text without it")

    def _render(self, messages: Sequence[Message], request: ResolvedRequest) -> list[int]:
        """Return the prompt of a conversation; the assistant continues a last message of its own.

        Roles that repeat are joined if the template refuses them.
        """
        tokenizer = self._loaded.tokenizer
        chat = normalise_messages(messages, tokenizer.tool_call_form)
        continues = chat[-1]["role"] == "assistant"

        def render(chat: Sequence[Message]) -> list[int]:
            return tokenizer.render(
                chat,
                request.thinking,
                tools=request.tools or None,
                continue_final=continues,
                variables=request.template_variables,
            )

        try:
            return render(chat)
        except BadRequest:
            joined = join_consecutive(chat)
            if len(joined) == len(chat):
                raise
            return render(joined)

    def _stable(
        self, ids: Sequence[int], messages: Sequence[Message], request: ResolvedRequest
    ) -> int:
        """Return how many tokens of this prompt the prompt of the next turn starts with.

        Templates write an answer differently once another question follows: without its thought,
        for example. So the next turn is rendered with a stand-in for the answer and the question.
        """
        end = len(ids) - 1
        if not request.chat_template:
            return end
        answer = {"role": "assistant", "content": "."}
        question = {"role": "user", "content": "."}
        before = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        for later in ([*before, answer, question], [*before, answer, answer]):
            try:
                return _common_length(ids[:end], self._render(later, request))
            except BadRequest:
                continue
        return end

    def _boundaries(
        self,
        lease: Lease,
        ids: Sequence[int],
        messages: Sequence[Message],
        request: ResolvedRequest,
        stable: int,
    ) -> list[int]:
        """Return the lengths at which a prefill takes snapshots: the head's and the stable one.

        The head (the messages before the first user message) starts new conversations too. It is
        where two renderings with different user messages begin to differ.
        """
        n_head = next((n for n, one in enumerate(messages) if one.get("role") == "user"), 0)
        if lease.cache.keeps_all_rows or n_head == 0 or not request.chat_template:
            return [stable]
        head = list(messages[:n_head])
        try:
            first, second = (
                self._render([*head, {"role": "user", "content": text}], request)
                for text in ("a", "b")
            )
        except BadRequest:
            return [stable]
        return [_common_length(ids[:stable], first[: _common_length(first, second)]), stable]

    def _miss(
        self,
        lease: Lease,
        ids: Sequence[int],
        messages: Sequence[Message],
        request: ResolvedRequest,
    ) -> CacheMiss | None:
        """Return where the prompt differs from the conversation most like it, if that cost rows."""
        position = lease.first_difference
        if position is None or lease.cached_tokens >= min(position, len(ids) - 1):
            return None
        if not request.chat_template:
            return CacheMiss(position)

        def is_past(n_messages: int) -> bool:
            """Return whether the first `n_messages` messages contain the different token."""
            try:
                start = self._render(messages[:n_messages], request)
            except BadRequest:  # some templates refuse a part of a conversation
                return False
            return _common_length(ids, start) > position

        index = bisect_left(range(1, len(messages)), True, key=is_past)
        return CacheMiss(position, index, str(messages[index].get("role")))


def _with_answer(messages: Sequence[Message], result: Result) -> list[Message]:
    """Return the conversation with the answer, which may continue the last message."""
    last = messages[-1]
    if last["role"] != "assistant":
        return [*messages, result.message]
    return [*messages[:-1], {**last, "content": f"{last.get('content') or ''}{result.content}"}]


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    return common_length(token_ids(first), token_ids(second))
