"""The arms of a comparison: a prompt goes in, an answer with its times comes out.

Plain decoding is mlx-lm's own `generate_step` on the very arrays of the target. DFlash answers
through `Engine.stream`, as chat does, text and all. Both clocks start when the prompt is read
and stop with the last token.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_mlx.bench.suites import Prompt
from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.stats import Stats
from dflash_mlx.models.targets.decoder import DecoderTarget

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True)
class Answer:
    """What one arm wrote, and when: `marks` are (tokens so far, seconds so far).

    `tokens` end with the end token if there was one. `stats` is None for plain decoding.
    """

    tokens: tuple[int, ...]
    seconds: float
    prefill_s: float
    prompt_tokens: int
    marks: tuple[tuple[int, float], ...]
    peak_memory_bytes: int
    stats: Stats | None = None

    @property
    def speed(self) -> float:
        """Tokens per second of decoding."""
        return len(self.tokens) / self.seconds if self.seconds > 0 else 0.0


class Arm(Protocol):
    """One way of answering."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    def answer(self, engine: Engine, prompt: Prompt, n_tokens: int) -> Answer:
        """Return the greedy answer to `prompt`, at most `n_tokens` long."""


@dataclass(frozen=True)
class PlainArm:
    """mlx-lm's decoding of the target's arrays."""

    name: str = PLAIN

    def answer(self, engine: Engine, prompt: Prompt, n_tokens: int) -> Answer:
        """Return mlx-lm's answer, decoded on the thread that owns the models."""
        ids, stop = prompt_ids(engine, prompt), threading.Event()
        try:
            return engine.worker.submit(
                lambda: _plain(engine, ids, n_tokens, stop), cancel=stop
            ).result()
        finally:
            stop.set()  # an interrupted caller does not wait for the rest


@dataclass(frozen=True)
class DFlashArm:
    """Our engine with a fixed block, or choosing by itself (None)."""

    block: int | None = None

    @property
    def name(self) -> str:
        """The block, or auto."""
        return AUTO if self.block is None else f"block {self.block}"

    def answer(self, engine: Engine, prompt: Prompt, n_tokens: int) -> Answer:
        """Return the engine's answer, as a caller of `stream` gets it."""
        config = _greedy(n_tokens, self.block)
        began = start = time.perf_counter()
        tokens: list[int] = []
        marks: list[tuple[int, float]] = []
        stream, result = engine.stream(prompt.text, config), None
        try:
            for chunk in stream:
                now = time.perf_counter()
                if chunk.progress is not None:
                    start = now
                if chunk.tokens:
                    tokens += chunk.tokens
                    marks.append((len(tokens), now - start))
                result = chunk.result
        finally:
            stream.cancel()
        assert result is not None, "the stream ended without a result"
        return Answer(
            tokens=tuple(tokens),
            seconds=time.perf_counter() - start,
            prefill_s=start - began,
            prompt_tokens=result.prompt_tokens,
            marks=tuple(marks),
            peak_memory_bytes=result.stats.peak_memory_bytes,
            stats=result.stats,
        )


def prompt_ids(engine: Engine, prompt: Prompt) -> list[int]:
    """Return the tokens that both arms read: the pair's own template around the prompt."""
    thinking = engine.resolve(_greedy(1, None)).thinking
    return engine.loaded.tokenizer.render([{"role": "user", "content": prompt.text}], thinking)


def _greedy(n_tokens: int, block: int | None) -> GenerationConfig:
    return GenerationConfig(max_tokens=n_tokens, block_size=block, sampling=SamplingConfig())


def _plain(engine: Engine, ids: Sequence[int], n_tokens: int, stop: threading.Event) -> Answer:
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    loaded = engine.loaded
    target: Any = loaded.pair.target
    assert isinstance(target, DecoderTarget)
    began = start = time.perf_counter()

    def read(done: int, total: int) -> None:
        nonlocal start
        if done < total:
            start = time.perf_counter()

    tokens, marks = [], []
    n_tokens = min(n_tokens, loaded.context_length - len(ids) + 1)  # as our engine does
    mx.reset_peak_memory()
    for token, _ in generate_step(
        mx.array(list(ids)),
        target.model,
        max_tokens=n_tokens,
        prefill_step_size=loaded.cache_config.prefill_step_size,
        prompt_progress_callback=read,
    ):
        tokens.append(int(token))
        marks.append((len(tokens), time.perf_counter() - start))
        if token in loaded.tokenizer.eos_token_ids or stop.is_set():
            break
    return Answer(
        tokens=tuple(tokens),
        seconds=time.perf_counter() - start,
        prefill_s=start - began,
        prompt_tokens=len(ids),
        marks=tuple(marks),
        peak_memory_bytes=mx.get_peak_memory(),
    )
