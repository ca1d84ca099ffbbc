"""The arms of a comparison: each decodes a prompt and reports the tokens and their times.

Plain decoding is mlx-lm's `generate_step` on the target's own arrays; DFlash runs through
`Engine.stream`, as chat does. Both clocks run from the end of prefill to the last token.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dflash_mlx.bench.suites import BenchPrompt
from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.stats import Stats
from dflash_mlx.models.targets.decoder import DecoderTarget

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True)
class ArmAnswer:
    """The tokens of one answer and their times: `marks` are (tokens so far, seconds so far).

    `tokens` include the end-of-sequence token. `stats` is None for plain decoding.
    """

    tokens: tuple[int, ...]
    seconds: float
    prefill_s: float
    prompt_tokens: int
    marks: tuple[tuple[int, float], ...]
    peak_memory_bytes: int
    stats: Stats | None = None

    @property
    def throughput(self) -> float:
        """Tokens per second, without prefill."""
        return len(self.tokens) / self.seconds if self.seconds > 0 else 0.0


class Arm(Protocol):
    """One way of decoding a prompt."""

    @property
    def name(self) -> str:
        """The name in the report."""

    def answer(self, engine: Engine, prompt: BenchPrompt, n_tokens: int) -> ArmAnswer:
        """Return the greedy answer to `prompt`, at most `n_tokens` long."""


@dataclass(frozen=True)
class PlainArm:
    """Plain decoding by mlx-lm, on the target's own arrays."""

    name: str = PLAIN

    def answer(self, engine: Engine, prompt: BenchPrompt, n_tokens: int) -> ArmAnswer:
        """Return mlx-lm's answer, decoded on the worker thread, which owns the models."""
        ids, stop = prompt_ids(engine, prompt), threading.Event()
        try:
            return engine.worker.submit(
                lambda: _plain(engine, ids, n_tokens, stop), cancel=stop
            ).result()
        finally:
            stop.set()  # after an interrupt, the worker must not decode the rest


@dataclass(frozen=True)
class DFlashArm:
    """Our engine with a fixed block size, or with the block-size controller (None).

    `copies` also proposes draft tokens copied from the context.
    """

    block: int | None = None
    copies: bool = False

    @property
    def name(self) -> str:
        """`block N` or `auto`, with ` + copies` if they are used."""
        name = AUTO if self.block is None else f"block {self.block}"
        return f"{name} + copies" if self.copies else name

    def answer(self, engine: Engine, prompt: BenchPrompt, n_tokens: int) -> ArmAnswer:
        """Return the engine's answer, timed as a caller of `stream` receives it."""
        config = replace(_greedy(n_tokens, self.block), copies=self.copies)
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
        return ArmAnswer(
            tokens=tuple(tokens),
            seconds=time.perf_counter() - start,
            prefill_s=start - began,
            prompt_tokens=result.prompt_tokens,
            marks=tuple(marks),
            peak_memory_bytes=result.stats.peak_memory_bytes,
            stats=result.stats,
        )


def prompt_ids(engine: Engine, prompt: BenchPrompt) -> list[int]:
    """Return the prompt tokens of every arm: the chat template applied to the prompt."""
    thinking = engine.resolve(_greedy(1, None)).thinking
    return engine.loaded.tokenizer.render([{"role": "user", "content": prompt.text}], thinking)


def _greedy(n_tokens: int, block: int | None) -> GenerationConfig:
    return GenerationConfig(max_tokens=n_tokens, block_size=block, sampling=SamplingConfig())


def _plain(engine: Engine, ids: Sequence[int], n_tokens: int, stop: threading.Event) -> ArmAnswer:
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
    n_tokens = min(n_tokens, loaded.context_length - len(ids) + 1)  # the limit of our engine
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
    return ArmAnswer(
        tokens=tuple(tokens),
        seconds=time.perf_counter() - start,
        prefill_s=start - began,
        prompt_tokens=len(ids),
        marks=tuple(marks),
        peak_memory_bytes=mx.get_peak_memory(),
    )
