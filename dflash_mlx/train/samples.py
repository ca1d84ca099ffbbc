"""What a draft learns from: prompts with answers, as token ids of the target.

Samples are kept as flat arrays of ids, four bytes a token, so that a corpus is as large as it
looks. Whether a sample is held out depends on its tokens and on nothing else: a corpus that
grows, or comes in another order, never trains on what it was measured with.
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
"""Share of samples, by hash, that is measured with and never trained on."""

_LEAST = 2
"""Tokens of an answer that can be learned from: an anchor and one behind it."""

_LOOP, _LONGEST_PERIOD, _REPEATS = 48, 24, 4


@dataclass(frozen=True)
class Sample:
    """A prompt and the target's answer to it; `kind` says what sort of text it is, if known."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    kind: str = ""

    @property
    def n_tokens(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + len(self.answer)

    @property
    def tokens(self) -> np.ndarray:
        """Prompt and answer, [n]."""
        return np.array([*self.prompt, *self.answer])

    @property
    def first(self) -> int:
        """Where decoding begins: the place of the first anchor, the prompt's last token."""
        return len(self.prompt) - 1


class Samples(Sequence[Sample]):
    """A list of samples that takes four bytes a token."""

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
        """Return one sample, or a part of the list."""
        if isinstance(index, slice):
            return Samples(self[place] for place in range(len(self))[index])
        place = range(len(self))[index]
        start = self._ends[place - 1][1] if place else 0
        middle, end = self._ends[place]
        return Sample(
            tuple(self._ids[start:middle]), tuple(self._ids[middle:end]), self._kinds[place]
        )

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(end - middle for middle, end in self._ends)

    @property
    def n_tokens(self) -> int:
        """Tokens of all prompts and answers."""
        return len(self._ids)


class Limits(NamedTuple):
    """What a sample must keep to: ids below `vocab_size`, `max_rows` tokens, no `mask`."""

    vocab_size: int
    max_rows: int
    mask: int | None = None


@dataclass
class Sieve:
    """Takes the samples that can be learned from, and counts those that cannot and why."""

    limits: Limits
    dropped: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def keep(self, sample: Sample, source: str = "the data") -> Sample | None:
        """Return `sample`, its answer cut to the length there is; None where it is of no use.

        Raises:
            BadRequest: an id that the target does not have: the ids are another tokenizer's.
        """
        n_ids = self.limits.vocab_size
        strange = [token for token in sample.prompt + sample.answer if not 0 <= token < n_ids]
        if strange:
            raise BadRequest(
                f"{source} holds token {strange[0]} and this target has ids 0 to {n_ids - 1}; the "
                "ids are another tokenizer's. Give text instead"
            )
        if fault := self._fault(sample):
            self.dropped[fault] += 1
            return None
        room = self.limits.max_rows - len(sample.prompt)
        if len(sample.answer) > room:
            self.cut += 1
            sample = Sample(sample.prompt, sample.answer[:room], sample.kind)
        self._seen.add(digest(sample.prompt + sample.answer))
        return sample

    def _fault(self, sample: Sample) -> str | None:
        if not sample.prompt:
            return "without a prompt"
        if len(sample.answer) < _LEAST:
            return "without an answer"
        if len(sample.prompt) + _LEAST > self.limits.max_rows:
            return "too long"
        if self.limits.mask in sample.prompt or self.limits.mask in sample.answer:
            return "holding the mask token"
        if loops(sample.answer):
            return "looping"
        if digest(sample.prompt + sample.answer) in self._seen:
            return "repeated"
        return None

    def described(self) -> str:
        """What was dropped and cut, for a person to read; '' where nothing was."""
        cut = f"cut {self.cut} too long" if self.cut else ""
        return "; ".join(part for part in (counted(self.dropped), cut) if part)


def counted(dropped: Counter[str]) -> str:
    """What was dropped and how often, for a person to read; '' where nothing was."""
    parts = [f"{count} {why}" for why, count in sorted(dropped.items())]
    return f"dropped {', '.join(parts)}" if parts else ""


def loops(answer: Sequence[int]) -> bool:
    """Whether an answer ends in the same few tokens again and again."""
    for period in range(1, _LONGEST_PERIOD + 1):
        span = max(_LOOP, period * _REPEATS)
        if len(answer) > span and tuple(answer[-span:]) == tuple(answer[-span - period : -period]):
            return True
    return False


def digest(tokens: Sequence[int]) -> bytes:
    """Return eight bytes that stand for `tokens`."""
    return hashlib.blake2b(array("i", tokens).tobytes(), digest_size=8).digest()


def split(samples: Sequence[Sample]) -> tuple[Samples, Samples]:
    """Return the samples to train on and those held out, at least one of each if there are two.

    Raises:
        BadRequest: there are fewer than two samples.
    """
    if len(samples) < 2:
        raise BadRequest(
            f"there are {len(samples)} samples; training needs two or more, one of them to measure "
            "with. Give more data, or --samples"
        )
    line = int(HELD_OUT * 2**64)
    ranks = [int.from_bytes(digest(s.prompt + s.answer), "big") for s in samples]
    if not line > min(ranks):
        line = min(ranks) + 1
    trained = Samples(s for s, rank in zip(samples, ranks, strict=True) if rank >= line)
    held = Samples(s for s, rank in zip(samples, ranks, strict=True) if rank < line)
    return (trained, held) if trained else (held[1:], held[:1])
