"""The engine: a loaded pair and the thread that serves it.

It must not know files, names of models or how a pair is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from dflash_mlx.config import GenerationConfig
from dflash_mlx.decode.readback import settle
from dflash_mlx.engine.autotune import autotune_now
from dflash_mlx.engine.cache_budget import cache_budget
from dflash_mlx.engine.chat import ChatStream
from dflash_mlx.engine.loaded import LoadedPair, Prompt
from dflash_mlx.engine.measured_costs import save_costs
from dflash_mlx.engine.resolved_request import ResolvedRequest, ToolChoice, resolve_request
from dflash_mlx.engine.session import Session
from dflash_mlx.engine.stream import Result, Stream
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import DFlashError
from dflash_mlx.prefix_cache.pool import PrefixCache


class Engine:
    """A target model with its draft model, ready to answer.

    Every method may be called from any thread. Close the engine when it is no longer needed.

    Examples:
        >>> engine.resolve().block_size > 1
        True
        >>> isinstance(engine.generate("Say hello.", short).text, str)
        True
    """

    def __init__(self, loaded: LoadedPair, worker: Worker) -> None:
        self._loaded: LoadedPair | None = loaded
        self.worker = worker
        self._prefix_cache = PrefixCache(
            lambda: loaded.pair.make_cache(loaded.cache_config.max_bytes),
            cache_budget(loaded.cache_config),
            settle,
        )

    @property
    def loaded(self) -> LoadedPair:
        """The pair in memory.

        Raises:
            DFlashError: the engine is closed.
        """
        if self._loaded is None:
            raise DFlashError("this engine is closed; load the model again")
        return self._loaded

    def resolve(self, config: GenerationConfig | None = None) -> ResolvedRequest:
        """Return the settings that a request with `config` runs with.

        Raises:
            BadRequest: an option that this pair does not support.
        """
        return resolve_request(self.loaded, config)

    def stream(self, prompt: Prompt, config: GenerationConfig | None = None) -> Stream:
        """Answer `prompt` in a new conversation and return the stream; see `Session.stream`."""
        return self.session().stream(prompt, config)

    def generate(self, prompt: Prompt, config: GenerationConfig | None = None) -> Result:
        """Answer `prompt` in a new conversation and return the whole answer."""
        return self.stream(prompt, config).result()

    def chat(
        self,
        messages: Prompt,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = "auto",
        config: GenerationConfig | None = None,
    ) -> Result:
        """Answer a conversation and return the whole answer; see `Session.chat_stream`."""
        return self.session().chat(messages, tools, tool_choice, config)

    def chat_stream(
        self,
        messages: Prompt,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = "auto",
        config: GenerationConfig | None = None,
    ) -> ChatStream:
        """Answer a conversation and return the stream of events; see `Session.chat_stream`."""
        return self.session().chat_stream(messages, tools, tool_choice, config)

    def session(self, system: str | None = None) -> Session:
        """Return a new conversation, whose turns reuse the KV rows of earlier prompts.

        Args:
            system: system message in front of the first turn.
        """
        return Session(self.loaded, self.worker, self._prefix_cache, system)

    def autotune_kernels(self, on_step: Callable[[str], None] = lambda text: None) -> None:
        """Autotune the Metal kernels that have no result for this machine, for at most 20 s.

        Without this call, autotuning runs between requests, after the first answer.

        Args:
            on_step: receives one line for each tuning task.
        """
        loaded = self.loaded
        self.worker.run(lambda: autotune_now(loaded, on_step))

    def close(self) -> None:
        """Cancel running and waiting requests, save the measured costs and release the models.

        Sessions also refer to the models: their memory is freed when the last session is gone.
        """
        self.worker.close()
        if self._loaded is not None:
            save_costs(self._loaded)
            self._loaded = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
