"""Training samples: prompts with the target's answers, as token ids of the target.

Must not know where samples come from, nor what is trained on them.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np

from dflash_mlx.errors import BadRequest

HELD_OUT = 0.02
"""Share of the samples that is held out for evaluation: enough for a curve, cheap to lose."""

_MIN_ANSWER_TOKENS = 2
"""An anchor and one token after it: the shortest answer with something to predict."""

_LOOP_TOKENS, _LONGEST_PERIOD, _REPEATS = 48, 24, 4
"""An answer loops when its last 48 tokens, or 4 periods if that is more, repeat a period of at
most 24 tokens. Lists and tables repeat for fewer tokens than that."""


@dataclass(frozen=True)
class Sample:
    """A prompt and the target's answer in token ids; `kind` names the sort of text, if known."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    kind: str = ""

    @property
    def n_tokens(self) -> int:
        """Number of tokens, prompt and answer together."""
        return len(self.prompt) + len(self.answer)

    @property
    def tokens(self) -> np.ndarray:
        """Prompt and answer, [n]."""
        return np.array([*self.prompt, *self.answer])

    @property
    def first(self) -> int:
        """Position of the first anchor: the last token of the prompt."""
        return len(self.prompt) - 1


class Samples(Sequence[Sample]):
    """A list of samples that takes four bytes per token."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._ids = array("i")
        self._ends: list[tuple[int, int]] = []
        self._kinds: list[str] = []
        for sample in samples:
            self.append(sample)

    def append(self, sample: Sample) -> None:
        """Add a sample at the end."""
        self._ids.extend(sample.prompt)
        middle = len(self._ids)
        self._ids.extend(sample.answer)
        self._ends.append((middle, len(self._ids)))
        self._kinds.append(sample.kind)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> "Samples": ...
    def __getitem__(self, index: int | slice) -> "Sample | Samples":
        """Return one sample, or a slice of the list."""
        if isinstance(index, slice):
            return Samples(self[position] for position in range(len(self))[index])
        position = range(len(self))[index]
        start = self._ends[position - 1][1] if position else 0
        middle, end = self._ends[position]
        return Sample(
            tuple(self._ids[start:middle]), tuple(self._ids[middle:end]), self._kinds[position]
        )

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def answer_tokens(self) -> int:
        """Number of tokens of all answers."""
        return sum(end - middle for middle, end in self._ends)

    @property
    def n_tokens(self) -> int:
        """Number of tokens of all prompts and answers."""
        return len(self._ids)


class SampleLimits(NamedTuple):
    """Limits of a sample: ids below `vocab_size`, `max_seq_length` tokens, no `mask_token`."""

    vocab_size: int
    max_seq_length: int
    mask_token: int | None = None


@dataclass
class SampleFilter:
    """Accepts the samples that can be trained on and counts the others by reason."""

    limits: SampleLimits
    dropped: Counter[str] = field(default_factory=Counter)
    truncated: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def accept(self, sample: Sample, source: str = "the data") -> Sample | None:
        """Return `sample` with its answer cut to the length limit, or None if it is dropped.

        Raises:
            BadRequest: a token id is outside the target's vocabulary.
        """
        n_ids = self.limits.vocab_size
        foreign = [token for token in sample.prompt + sample.answer if not 0 <= token < n_ids]
        if foreign:
            raise BadRequest(
                f"{source} contains token id {foreign[0]} and this target has ids 0 to "
                f"{n_ids - 1}; the ids come from another tokenizer; give text instead"
            )
        if reason := self._reason_to_drop(sample):
            self.dropped[reason] += 1
            return None
        room = self.limits.max_seq_length - len(sample.prompt)
        if len(sample.answer) > room:
            self.truncated += 1
            sample = Sample(sample.prompt, sample.answer[:room], sample.kind)
        self._seen.add(digest(sample.prompt + sample.answer))
        return sample

    def _reason_to_drop(self, sample: Sample) -> str | None:
        if not sample.prompt:
            return "without a prompt"
        if len(sample.answer) < _MIN_ANSWER_TOKENS:
            return "without an answer"
        if len(sample.prompt) + _MIN_ANSWER_TOKENS > self.limits.max_seq_length:
            return "too long"
        if self.limits.mask_token in sample.prompt or self.limits.mask_token in sample.answer:
            return "with the mask token"
        if is_looping(sample.answer):
            return "looping"
        if digest(sample.prompt + sample.answer) in self._seen:
            return "repeated"
        return None

    def summary(self) -> str:
        """Return what was dropped and truncated in one line, '' if there are none."""
        truncated = f"truncated {self.truncated}" if self.truncated else ""
        return "; ".join(part for part in (drop_summary(self.dropped), truncated) if part)


def drop_summary(dropped: Counter[str]) -> str:
    """Return the number of dropped samples by reason in one line, '' if there are none."""
    parts = [f"{count} {reason}" for reason, count in sorted(dropped.items())]
    return f"dropped {', '.join(parts)}" if parts else ""


def is_looping(answer: Sequence[int]) -> bool:
    """Return whether an answer ends in a repetition of the same few tokens."""
    for period in range(1, _LONGEST_PERIOD + 1):
        span = max(_LOOP_TOKENS, period * _REPEATS)
        if len(answer) > span and tuple(answer[-span:]) == tuple(answer[-span - period : -period]):
            return True
    return False


def digest(tokens: Sequence[int]) -> bytes:
    """Return an eight-byte hash of `tokens`."""
    return hashlib.blake2b(array("i", tokens).tobytes(), digest_size=8).digest()


def split_held_out(samples: Sequence[Sample]) -> tuple[Samples, Samples]:
    """Return the samples to train on and the held-out samples, at least one of each.

    A sample is held out by the hash of its tokens alone, so that a corpus that grows or changes
    its order never trains on samples that were evaluated before.

    Raises:
        BadRequest: there are fewer than two samples.
    """
    if len(samples) < 2:
        raise BadRequest(
            f"the data has {len(samples)} usable samples and training needs at least 2, one of "
            "them for evaluation; give more data or raise --samples"
        )
    line = int(HELD_OUT * 2**64)
    ranks = [int.from_bytes(digest(s.prompt + s.answer), "big") for s in samples]
    if not line > min(ranks):
        line = min(ranks) + 1
    trained = Samples(s for s, rank in zip(samples, ranks, strict=True) if rank >= line)
    held_out = Samples(s for s, rank in zip(samples, ranks, strict=True) if rank < line)
    return (trained, held_out) if trained else (held_out[1:], held_out[:1])
