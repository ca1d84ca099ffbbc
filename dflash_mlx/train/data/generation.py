"""The target generates text for training: user turns and, in batches, their answers.

Must not know what the text is used for.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.config import SamplingConfig
from dflash_mlx.decode.sampling import filtered, log_probs
from dflash_mlx.errors import BadRequest, UnsupportedModel
from dflash_mlx.loading.tokenizer import Tokenizer

TURN_SAMPLING = SamplingConfig(temperature=1.0, top_k=40)
"""Sampling of user turns: the target's own distribution without its improbable tail."""

Continue = Callable[[int], bool]
"""`(tokens generated so far) -> whether to continue`."""

_MAX_PREFILL_BATCH = 8
"""Prompts per prefill forward: longer prompts than answers must not decide the peak memory."""


@dataclass(frozen=True)
class GenerationLimits:
    """Bounds of one call of `generate`: sequences decoded together, and tokens per sequence."""

    batch_size: int = 16
    max_tokens: int = 512


def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    stop_tokens: Collection[int],
    limits: GenerationLimits,
    sampling: SamplingConfig,
    key: mx.array,
    should_continue: Continue = lambda n_tokens: True,
) -> list[tuple[int, ...]] | None:
    """Return the model's answer to each prompt, including the stop token if there is one.

    Returns None if `should_continue` returned False. A call with the same prompts and key
    returns the same tokens.

    Raises:
        UnsupportedModel: mlx-lm cannot batch this model family.
    """
    from mlx_lm.generate import BatchGenerator

    generator: Any = BatchGenerator(
        model,
        max_tokens=limits.max_tokens,
        stop_tokens=[[token] for token in sorted(stop_tokens)],
        sampler=_KeyedSampler(sampling, key),
        completion_batch_size=limits.batch_size,
        prefill_batch_size=min(limits.batch_size, _MAX_PREFILL_BATCH),
    )
    answers: dict[int, list[int]] = {
        uid: [] for uid in generator.insert([list(prompt) for prompt in prompts])
    }
    n_tokens = 0
    try:
        while responses := generator.next_generated():
            for response in responses:
                answers[response.uid].append(int(response.token))
            n_tokens += len(responses)
            if not should_continue(n_tokens):
                return None
    except ValueError as error:
        raise UnsupportedModel(
            f"mlx-lm cannot generate with several sequences of this family at once ({error}); give "
            "answers of the target as token ids in --data FILE"
        ) from error
    finally:
        generator.close()
    return [tuple(tokens) for tokens in answers.values()]


class _KeyedSampler:
    """Samples one token per row with keys split from one key, in the order of the calls."""

    def __init__(self, sampling: SamplingConfig, key: mx.array) -> None:
        self._sampling = sampling
        self._key = key

    def __call__(self, scores: mx.array) -> mx.array:
        """Return tokens [R] for log-probabilities [R, V]."""
        if self._sampling.greedy:
            return mx.argmax(scores, axis=-1)
        self._key, key = mx.random.split(self._key)
        return mx.random.categorical(log_probs(filtered(scores, self._sampling)), key=key)


@dataclass(frozen=True)
class UserTurnTemplate:
    """The tokens that a chat template puts before a user's text, and the token that ends it."""

    prefix: tuple[int, ...]
    end: int


def user_turn_template(tokenizer: Tokenizer, thinking: bool | None) -> UserTurnTemplate:
    """Return the template of a first user turn: the tokens that rendered conversations share.

    Raises:
        BadRequest: there is no chat template, or it puts no tokens around a user's text.
    """
    if not tokenizer.has_template:
        raise BadRequest(
            "--data self generates user turns with the chat template and this model has none; "
            "give prompts with --data FILE"
        )
    one, other = (
        tokenizer.render([{"role": "user", "content": text}], thinking)
        for text in ("Apples are ripe", "Zebras run by night")
    )
    prefix, reversed_suffix = _common_prefix(one, other), _common_prefix(one[::-1], other[::-1])
    if not prefix or not reversed_suffix:
        raise BadRequest(
            "--data self needs a chat template that puts tokens around a user's text and this "
            "model's does not; give prompts with --data FILE"
        )
    return UserTurnTemplate(prefix, reversed_suffix[-1])


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    pairs = zip(one, other, strict=False)
    return tuple(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
