"""A corpus in the target's own words, written shard by shard into a run's folder.

Questions are drawn by the target itself or come from a data set; the answers are always the
target's. An interruption loses the shard that was being written and nothing else.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.target import LoadedTarget
from dflash_mlx.train.questions import Question
from dflash_mlx.train.samples import Limits, Sample, Samples, Sieve, digest
from dflash_mlx.train.shards import Shard, Shards
from dflash_mlx.train.writing import TURNS, KeepOn, Pace, turn_frame, write

_FRUITLESS = 4
"""Shards in a row without one good sample after which writing is given up."""


@dataclass(frozen=True)
class Writing:
    """How a corpus is written: samples a shard, their pace and length, how answers are chosen."""

    per_shard: int = 16
    pace: Pace = field(default_factory=Pace)
    turn_tokens: int = 96
    answers: SamplingConfig = field(default_factory=SamplingConfig)
    thinking: bool | None = None
    seed: int = 0


class Writer:
    """Writes a target's samples; `questions` None lets the target ask too."""

    def __init__(
        self,
        loaded: LoadedTarget,
        writing: Writing,
        limits: Limits,
        questions: Sequence[Question] | None = None,
    ) -> None:
        self.loaded = loaded
        self.writing = writing
        self.limits = limits
        self.questions = questions
        self._frame = turn_frame(loaded.tokenizer, writing.thinking) if questions is None else None
        self._asked: set[bytes] = set()

    def remember(self, samples: Sequence[Sample]) -> None:
        """Take the questions of samples that are on disk as asked: none of them is put again."""
        self._asked |= {digest(sample.prompt) for sample in samples}

    def runs_out_at(self) -> int | None:
        """Return how many shards the questions give, None where the target asks."""
        return None if self.questions is None else -(-len(self.questions) // self.writing.per_shard)

    def shard(self, index: int, keep_on: KeepOn) -> Shard | None:
        """Return what shard `index` holds; None when `keep_on` stopped it.

        Raises:
            UnsupportedModel: the family cannot be run many sequences at a time.
        """
        dropped: Counter[str] = Counter()
        asked = self._prompts(index, dropped, keep_on)
        if asked is None:
            return None
        n_turns, prompts = asked
        answers = self._write([ids for ids, _ in prompts], index, keep_on)
        if answers is None:
            return None
        sieve = Sieve(self.limits)
        pairs = zip(prompts, answers, strict=True)
        made = [sieve.keep(Sample(ids, answer, kind)) for (ids, kind), answer in pairs]
        n_written = n_turns + sum(len(answer) for answer in answers)
        kept = tuple(sample for sample in made if sample)
        return Shard(kept, dropped + sieve.dropped, n_written)

    def _write(
        self, prompts: Sequence[tuple[int, ...]], index: int, keep_on: KeepOn
    ) -> list[tuple[int, ...]] | None:
        """Return the target's answers to `prompts`."""
        if not prompts:
            return []
        tokenizer, key = self.loaded.tokenizer, self._key(index, 1)
        return write(
            self.loaded.target.model,
            prompts,
            tokenizer.eos_token_ids,
            self.writing.pace,
            self.writing.answers,
            key,
            keep_on,
        )

    def _prompts(
        self, index: int, dropped: Counter[str], keep_on: KeepOn
    ) -> tuple[int, list[tuple[tuple[int, ...], str]]] | None:
        """Return the tokens written for it, and the rendered questions of a shard with kinds."""
        size = self.writing.per_shard
        n_written, prompts = 0, []
        if self.questions is None:
            turns = self._turns(index, keep_on)
            if turns is None:
                return None
            n_written = sum(len(turn) for turn in turns)
            questions = list(self._spoken(turns, dropped))
        else:
            questions = list(self.questions[index * size : (index + 1) * size])
        here: set[bytes] = set()
        for question in questions:
            ids = self._rendered(question)
            if len(ids) + 2 > self.limits.max_rows:
                dropped["too long"] += 1
            elif digest(ids) in here or digest(ids) in self._asked:
                dropped["repeated"] += 1
            else:
                here.add(digest(ids))
                prompts.append((ids, question.kind))
        return n_written, prompts

    def _rendered(self, question: Question) -> tuple[int, ...]:
        tokenizer = self.loaded.tokenizer
        if tokenizer.has_template:
            return tuple(tokenizer.render(question.messages, self.writing.thinking))
        return tuple(tokenizer.encode("\n".join(m["content"] for m in question.messages)))

    def _turns(self, index: int, keep_on: KeepOn) -> list[tuple[int, ...]] | None:
        """Return user turns as the target draws them behind its template's opening."""
        assert self._frame is not None
        pace = Pace(self.writing.pace.batch, self.writing.turn_tokens)
        ends = self.loaded.tokenizer.eos_token_ids | {self._frame.end}
        prompts = [self._frame.before] * self.writing.per_shard
        model = self.loaded.target.model
        return write(model, prompts, ends, pace, TURNS, self._key(index, 0), keep_on)

    def _spoken(
        self, turns: Sequence[tuple[int, ...]], dropped: Counter[str]
    ) -> Iterator[Question]:
        """Yield finished turns as the text that a user would have typed."""
        assert self._frame is not None
        ends = self.loaded.tokenizer.eos_token_ids | {self._frame.end}
        for turn in turns:
            text = self.loaded.tokenizer.decode(turn[:-1]).strip()
            if not turn or turn[-1] not in ends:
                dropped["an unfinished question"] += 1
            elif not text:
                dropped["an empty question"] += 1
            else:
                yield Question(({"role": "user", "content": text},))

    def _key(self, index: int, part: int) -> mx.array:
        """Return the random key of turns (0) or answers (1) of a shard."""
        return mx.array([self.writing.seed, 2 * index + part], dtype=mx.uint32)


OnShard = Callable[[int, Shard], None]
"""`(samples so far, the shard just written)`."""


def grow(
    writer: Writer, shards: Shards, n_samples: int, keep_on: KeepOn, on_shard: OnShard
) -> Samples | None:
    """Return the samples of `shards` once there are `n_samples`, or the questions are used up.

    Returns None when `keep_on` stopped it; what is on disk stays.

    Raises:
        BadRequest: shard after shard gave nothing that can be learned from.
        DFlashError: a shard could not be written.
    """
    samples = Samples()
    for shard in shards:
        for sample in shard.samples:
            samples.append(sample)
    writer.remember(samples)
    fruitless, last = 0, writer.runs_out_at()
    while len(samples) < n_samples and (last is None or len(shards) < last):
        made = writer.shard(len(shards), keep_on)
        if made is None:
            return None
        shards.append(made)
        writer.remember(made.samples)
        for sample in made.samples:
            samples.append(sample)
        on_shard(len(samples), made)
        fruitless = 0 if made.samples else fruitless + 1
        if fruitless == _FRUITLESS:
            raise BadRequest(
                f"{fruitless * writer.writing.per_shard} texts in a row were of no use "
                f"({', '.join(sorted(made.dropped))}); give prompts with --data FILE"
            )
    return samples
