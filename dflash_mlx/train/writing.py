"""The target writes: user turns out of nothing, and answers to them, many side by side.

mlx-lm's batch generator does the work. Sequences of one call share a sampler whose random stream
is the call's own, so a call with the same prompts and key writes the same tokens.
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

TURNS = SamplingConfig(temperature=1.0, top_k=40)
"""How user turns are drawn: as the target would, its improbable tail left out."""

KeepOn = Callable[[int], bool]
"""`(tokens written so far) -> go on?`"""


@dataclass(frozen=True)
class Pace:
    """How much is written at once: `batch` sequences side by side, `n_tokens` each at most."""

    batch: int = 16
    n_tokens: int = 512


def write(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    ends: Collection[int],
    pace: Pace,
    sampling: SamplingConfig,
    key: mx.array,
    keep_on: KeepOn = lambda n_tokens: True,
) -> list[tuple[int, ...]] | None:
    """Return what `model` writes behind each of `prompts`, an end token included where it came.

    Returns None when `keep_on` stopped it.

    Raises:
        UnsupportedModel: mlx-lm does not run this family many sequences at a time.
    """
    from mlx_lm.generate import BatchGenerator

    generator: Any = BatchGenerator(
        model,
        max_tokens=pace.n_tokens,
        stop_tokens=[[token] for token in sorted(ends)],
        sampler=_Sampler(sampling, key),
        completion_batch_size=pace.batch,
        prefill_batch_size=min(pace.batch, 8),
    )
    written: dict[int, list[int]] = {
        place: [] for place in generator.insert([list(prompt) for prompt in prompts])
    }
    n_tokens = 0
    try:
        while responses := generator.next_generated():
            for response in responses:
                written[response.uid].append(int(response.token))
            n_tokens += len(responses)
            if not keep_on(n_tokens):
                return None
    except ValueError as error:
        raise UnsupportedModel(
            f"mlx-lm does not run this family many sequences at a time ({error}); give answers of "
            "the target as token ids in --data FILE"
        ) from error
    finally:
        generator.close()
    return [tuple(tokens) for tokens in written.values()]


class _Sampler:
    """Draws a token per row with keys split from one key, in the order of the calls."""

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
class TurnFrame:
    """What a chat template puts before a user's words, and the token that it ends them with."""

    before: tuple[int, ...]
    end: int


def turn_frame(tokenizer: Tokenizer, thinking: bool | None) -> TurnFrame:
    """Return the frame of a first user turn: what rendered conversations have in common.

    Raises:
        BadRequest: there is no template, or it wraps turns in no tokens of its own.
    """
    if not tokenizer.has_template:
        raise BadRequest(
            "--data self draws user turns from the chat template and this model has none; give "
            "prompts with --data FILE"
        )
    one, other = (
        tokenizer.render([{"role": "user", "content": text}], thinking)
        for text in ("Apples are ripe", "Zebras run by night")
    )
    before, behind = _shared(one, other), _shared(one[::-1], other[::-1])
    if not before or not behind:
        raise BadRequest(
            "--data self needs a chat template that puts tokens round a user's turn and this "
            "model's does not; give prompts with --data FILE"
        )
    return TurnFrame(before, behind[-1])


def _shared(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    pairs = zip(one, other, strict=False)
    return tuple(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
