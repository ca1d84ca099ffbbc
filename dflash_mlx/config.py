"""Frozen configurations: the options of a caller with their ranges, checked once.

It must not know models, files or devices; defaults that depend on them are resolved elsewhere.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from dflash_mlx.errors import BadRequest

LogitsProcessor = Callable[[Any, Any], Any]
"""`(tokens [n], logits [1, V]) -> logits [1, V]`, both mlx arrays: mlx-lm's signature."""

ReasoningEffort = Literal["low", "medium", "high"]

MAX_STOPS = 16
"""Stop strings of a request at most: agents that build on other servers send up to this many."""


def _check(name: str, value: Any, good: bool, need: str) -> None:
    if not good:
        raise BadRequest(f"{name} is {value!r}; it needs {need}")


_LARGEST = sys.float_info.max


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= _LARGEST  # False for NaN; an int of 400 digits has no float


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class SamplingConfig:
    """How a token is chosen from the target's logits.

    Filters apply in mlx-lm's order: top-p, min-p, top-k, then temperature. Penalties apply before
    the filters.

    Args:
        temperature: 0 is greedy and ignores the filters; otherwise 0.001 to 100.
        top_p: keep the most likely tokens whose probabilities reach this sum; 1 is off.
        top_k: keep this many of the most likely tokens; 0 is off.
        min_p: minimum probability relative to the most likely token; 0 is off.
        repetition_penalty: divides positive logits of tokens that occurred; 1 is off.
        presence_penalty: subtracted from the logits of tokens that occurred; 0 is off.
        frequency_penalty: subtracted once per occurrence; 0 is off.
        repetition_context_size: tokens of prompt and answer that penalties look back over.
        logit_bias: numbers added to logits, by token id.
        seed: seed of the random numbers; None draws one for each request.

    Raises:
        BadRequest: a value outside its range.

    Examples:
        >>> dflash_mlx.SamplingConfig(temperature=0.7, top_p=0.9, seed=1).greedy
        False
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
        # 1 / temperature overflows float32 for tiny values; 0.001 is greedy in practice
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
        """Whether the most likely token is always chosen."""
        return self.temperature == 0

    def described(self) -> str:
        """Return the settings that differ from greedy decoding, as text for a person."""
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
    """Options of one request.

    Args:
        max_tokens: limit on the answer's tokens, end token excluded.
        stop: up to 16 texts or special tokens that end the answer; they are not part of it.
        block_size: tokens verified per round, anchor included, 1 to 64; 1 disables speculation,
            None lets the pair choose.
        sampling: how a token is chosen; None takes the pair's recommended sampling.
        thinking: thinking mode; None takes the mode that the draft was trained with, and on if
            that is unknown.
        reasoning_effort: "low", "medium" or "high", for templates that read it; None leaves it to
            the template.
        copies: whether draft tokens are also copied from the context, where that is expected to be
            faster; None does so if the pair was loaded with `draft="copy"`.
        prediction: text that the answer will probably repeat, such as a file before an edit; its
            tokens are proposed as draft tokens.
        chat_template: whether the prompt is rendered with the model's chat template.
        chat_template_kwargs: further variables of the chat template.
        logits_processors: functions that change the logits of each token, applied last.

    Raises:
        BadRequest: a value outside its range.

    Examples:
        >>> greedy = dflash_mlx.SamplingConfig(temperature=0)
        >>> config = dflash_mlx.GenerationConfig(max_tokens=16, stop=("END",), sampling=greedy)
        >>> engine.generate("Name a colour.", config).generated_tokens <= 16
        True
    """

    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    block_size: int | None = None
    sampling: SamplingConfig | None = None
    thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    copies: bool | None = None
    prediction: str | None = None
    chat_template: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
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
                f"thinking is {self.thinking} and chat_template is False; only the chat template "
                "can switch thinking, so leave one of them out"
            )
        predicted = self.prediction
        good = predicted is None or (isinstance(predicted, str) and bool(predicted))
        _check("prediction", predicted, good, "a text that is not empty")
        efforts = get_args(ReasoningEffort)
        _check(
            "reasoning_effort",
            self.reasoning_effort,
            self.reasoning_effort is None or self.reasoning_effort in efforts,
            f"one of {', '.join(efforts)}",
        )
        variables: object = self.chat_template_kwargs
        named = isinstance(variables, Mapping) and all(isinstance(key, str) for key in variables)
        _check("chat_template_kwargs", variables, named, "an object with names as keys")
        object.__setattr__(
            self, "chat_template_kwargs", MappingProxyType(dict(self.chat_template_kwargs))
        )
        stop: object = self.stop
        if isinstance(stop, str):  # for example ("text") without the comma of a tuple
            raise BadRequest(f"stop is the text {stop!r}; it needs a tuple of texts")
        object.__setattr__(self, "stop", tuple(self.stop))
        _check("stop", self.stop, len(self.stop) <= MAX_STOPS, f"at most {MAX_STOPS} texts")
        texts = all(isinstance(text, str) and text for text in self.stop)
        _check("stop", self.stop, texts, "texts that are not empty")
        _check(
            "block_size",
            self.block_size,
            self.block_size is None or (_is_count(self.block_size) and 1 <= self.block_size <= 64),
            "1 (speculation disabled) to 64",
        )


@dataclass(frozen=True)
class CacheConfig:
    """Bounds on the KV caches of target and draft.

    Args:
        max_bytes: bytes of both caches together; None leaves the context length as the only bound.
        prefill_step_size: prompt tokens per forward; the default is mlx-lm's, so that both read a
            prompt in the same chunks.

    Raises:
        BadRequest: a value outside its range.

    Examples:
        >>> dflash_mlx.CacheConfig(max_bytes=2 * 10**9).prefill_step_size
        2048
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


Blas = Literal["auto", "bundled", "openblas"]

ComputeDType = Literal["auto", "stored", "float32"]
"""How the weights of target and draft are held in memory and computed with: "stored" as the files
store them and as mlx-lm computes; "float32" widened to float32; "auto" is stored on Metal and
float32 on a CPU."""

KernelPolicy = Literal["auto", "off", "force"]
"""Which Metal kernels to use: correct and faster on this machine, none, or all correct ones."""
