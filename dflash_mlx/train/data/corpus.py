"""A corpus that the target generates, stored shard by shard so that no shard is generated twice.

Must not know the draft that is trained on it.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.target import LoadedTarget
from dflash_mlx.system.atomic import replace_file
from dflash_mlx.system.foreign import quoted, reading
from dflash_mlx.train.data.generation import (
    TURN_SAMPLING,
    Continue,
    GenerationLimits,
    generate,
    user_turn_template,
)
from dflash_mlx.train.data.samples import Sample, SampleFilter, SampleLimits, Samples, digest
from dflash_mlx.train.data.sources import ChatPrompt

_MAX_EMPTY_SHARDS = 4
"""Shards in a row without a usable sample after which generation is given up: 64 answers."""

_MAX_SHARD_BYTES = 2**26
"""Largest shard that is read: 64 MiB, hundreds of times the text of 16 samples."""

Encoded = tuple[tuple[int, ...], str]
"""A rendered prompt in token ids, and its kind."""


@dataclass(frozen=True)
class Shard:
    """Accepted samples, dropped ones by reason, and the number of tokens that were generated."""

    samples: tuple[Sample, ...]
    dropped: Counter[str]
    n_generated: int


class ShardFolder:
    """The shards in a folder: gzipped JSON files that are complete or absent.

    Token ids of `vocab_size` or more do not belong to the target and are refused.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder = folder
        self.vocab_size = vocab_size

    def __len__(self) -> int:
        """Number of shards, counted from the first one up to the first gap."""
        count = 0
        while self._file(count).exists():
            count += 1
        return count

    def __iter__(self) -> Iterator[Shard]:
        """Yield the shards in their order.

        Raises:
            BadCheckpoint: a file is not one that `append` wrote.
        """
        for index in range(len(self)):
            yield self._read(self._file(index))

    def append(self, shard: Shard) -> None:
        """Write the next shard.

        Raises:
            DFlashError: the file cannot be written; the earlier shards are unchanged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        table = {
            "samples": [[s.prompt, s.answer, s.kind] for s in shard.samples],
            "dropped": dict(sorted(shard.dropped.items())),
            "n_generated": shard.n_generated,
        }
        text = gzip.compress(json.dumps(table, separators=(",", ":")).encode(), mtime=0)
        replace_file(
            self._file(len(self)),
            lambda partial: partial.write_bytes(text),
            "free disk space and continue with --resume",
        )

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:05}.json.gz"

    def _read(self, file: Path) -> Shard:
        with (
            reading(file, "the shard", "delete it, and --resume generates it again"),
            gzip.open(file) as stream,
        ):
            text = stream.read(_MAX_SHARD_BYTES + 1)
            if len(text) > _MAX_SHARD_BYTES:
                raise ValueError(f"it has more than {_MAX_SHARD_BYTES} bytes")
            table: Any = json.loads(text)
            samples = tuple(self._sample(*row) for row in table["samples"])
            dropped = {str(reason): _count(n) for reason, n in table["dropped"].items()}
            return Shard(samples, Counter(dropped), _count(table["n_generated"]))

    def _sample(self, prompt: Any, answer: Any, kind: Any) -> Sample:
        for ids in (prompt, answer):
            if not isinstance(ids, list) or not ids:
                raise ValueError(f"it contains {quoted(ids)} in place of token ids")
            for token in ids:
                if type(token) is not int or not 0 <= token < self.vocab_size:
                    raise ValueError(f"it contains {quoted(token)} in place of a token id")
        return Sample(tuple(prompt), tuple(answer), str(kind))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"it contains {quoted(value)} in place of a count")
    return value


@dataclass(frozen=True)
class CorpusConfig:
    """How a corpus is generated. `turn_tokens` bounds a user turn that the target generates."""

    shard_size: int = 16
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    turn_tokens: int = 96
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    thinking: bool | None = None
    seed: int = 0


class CorpusWriter:
    """Generates a target's samples; without `prompts` the target generates the user turns too.

    The content of shard k depends on the seed and on k, so a stopped run continues with the same
    shards.
    """

    def __init__(
        self,
        loaded: LoadedTarget,
        config: CorpusConfig,
        limits: SampleLimits,
        prompts: Sequence[ChatPrompt] | None = None,
    ) -> None:
        self.loaded = loaded
        self.config = config
        self.limits = limits
        self.prompts = prompts
        self._turn = None
        if prompts is None:
            self._turn = user_turn_template(loaded.tokenizer, config.thinking)
        self._used: set[bytes] = set()

    def exclude(self, samples: Sequence[Sample]) -> None:
        """Do not use the prompts of `samples` again."""
        self._used |= {digest(sample.prompt) for sample in samples}

    @property
    def n_shards(self) -> int | None:
        """Number of shards that the prompts give, None if the target generates user turns."""
        return None if self.prompts is None else -(-len(self.prompts) // self.config.shard_size)

    def make_shard(self, index: int, should_continue: Continue) -> Shard | None:
        """Return shard `index`, or None if `should_continue` returned False.

        Raises:
            UnsupportedModel: mlx-lm cannot batch this model family.
        """
        dropped: Counter[str] = Counter()
        found = self._encoded_prompts(index, dropped, should_continue)
        if found is None:
            return None
        n_turn_tokens, prompts = found
        answers = self._answers([ids for ids, _ in prompts], index, should_continue)
        if answers is None:
            return None
        sample_filter = SampleFilter(self.limits)
        pairs = zip(prompts, answers, strict=True)
        made = [sample_filter.accept(Sample(ids, answer, kind)) for (ids, kind), answer in pairs]
        n_generated = n_turn_tokens + sum(len(answer) for answer in answers)
        accepted = tuple(sample for sample in made if sample)
        return Shard(accepted, dropped + sample_filter.dropped, n_generated)

    def _answers(
        self, prompts: Sequence[tuple[int, ...]], index: int, should_continue: Continue
    ) -> list[tuple[int, ...]] | None:
        if not prompts:
            return []
        return generate(
            self.loaded.target.model,
            prompts,
            self.loaded.tokenizer.eos_token_ids,
            self.config.limits,
            self.config.sampling,
            self._key(index, 1),
            should_continue,
        )

    def _encoded_prompts(
        self, index: int, dropped: Counter[str], should_continue: Continue
    ) -> tuple[int, list[Encoded]] | None:
        """Return the number of tokens generated for a shard's prompts, and the encoded prompts."""
        size = self.config.shard_size
        n_generated, encoded = 0, []
        if self.prompts is None:
            turns = self._generate_turns(index, should_continue)
            if turns is None:
                return None
            n_generated = sum(len(turn) for turn in turns)
            prompts = list(self._finished_turns(turns, dropped))
        else:
            prompts = list(self.prompts[index * size : (index + 1) * size])
        here: set[bytes] = set()
        for prompt in prompts:
            ids = self._encode(prompt)
            if len(ids) + 2 > self.limits.max_seq_length:
                dropped["too long"] += 1
            elif digest(ids) in here or digest(ids) in self._used:
                dropped["repeated"] += 1
            else:
                here.add(digest(ids))
                encoded.append((ids, prompt.kind))
        return n_generated, encoded

    def _encode(self, prompt: ChatPrompt) -> tuple[int, ...]:
        tokenizer = self.loaded.tokenizer
        if tokenizer.has_template:
            return tuple(tokenizer.render(prompt.messages, self.config.thinking))
        return tuple(tokenizer.encode("\n".join(m["content"] for m in prompt.messages)))

    def _generate_turns(
        self, index: int, should_continue: Continue
    ) -> list[tuple[int, ...]] | None:
        """Return user turns that the target generates after its template's prefix."""
        assert self._turn is not None
        limits = GenerationLimits(self.config.limits.batch_size, self.config.turn_tokens)
        stop_tokens = self.loaded.tokenizer.eos_token_ids | {self._turn.end}
        prompts = [self._turn.prefix] * self.config.shard_size
        model, key = self.loaded.target.model, self._key(index, 0)
        return generate(model, prompts, stop_tokens, limits, TURN_SAMPLING, key, should_continue)

    def _finished_turns(
        self, turns: Sequence[tuple[int, ...]], dropped: Counter[str]
    ) -> Iterator[ChatPrompt]:
        """Yield the text of the turns that end with a stop token."""
        assert self._turn is not None
        stop_tokens = self.loaded.tokenizer.eos_token_ids | {self._turn.end}
        for turn in turns:
            text = self.loaded.tokenizer.decode(turn[:-1]).strip()
            if not turn or turn[-1] not in stop_tokens:
                dropped["with an unfinished prompt"] += 1
            elif not text:
                dropped["with an empty prompt"] += 1
            else:
                yield ChatPrompt(({"role": "user", "content": text},))

    def _key(self, index: int, part: int) -> mx.array:
        """Return the random key of the user turns (0) or the answers (1) of a shard."""
        return mx.array([self.config.seed, 2 * index + part], dtype=mx.uint32)


OnShard = Callable[[int, Shard], None]
"""`(number of samples so far, the shard just written)`."""


def write_corpus(
    writer: CorpusWriter,
    shards: ShardFolder,
    n_samples: int,
    should_continue: Continue,
    on_shard: OnShard,
) -> Samples | None:
    """Generate shards until there are `n_samples`, or no prompt is left; return all samples.

    Returns None if `should_continue` returned False; the shards on disk stay.

    Raises:
        BadRequest: several shards in a row contain no usable sample.
        DFlashError: a shard cannot be written.
    """
    samples = Samples()
    for shard in shards:
        for sample in shard.samples:
            samples.append(sample)
    writer.exclude(samples)
    empty, last = 0, writer.n_shards
    while len(samples) < n_samples and (last is None or len(shards) < last):
        made = writer.make_shard(len(shards), should_continue)
        if made is None:
            return None
        shards.append(made)
        writer.exclude(made.samples)
        for sample in made.samples:
            samples.append(sample)
        on_shard(len(samples), made)
        empty = 0 if made.samples else empty + 1
        if empty == _MAX_EMPTY_SHARDS:
            raise BadRequest(
                f"{empty * writer.config.shard_size} answers in a row cannot be used "
                f"({', '.join(sorted(made.dropped))}); give other prompts with --data FILE"
            )
    return samples
