"""The target writes its own data: shards, resumed, sifted."""

import gzip
import json

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, generate_step

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadCheckpoint, BadRequest, DFlashError
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.loading.target import load_target
from dflash_mlx.train.questions import Question
from dflash_mlx.train.samples import Limits
from dflash_mlx.train.selfwritten import Writer, Writing, grow
from dflash_mlx.train.shards import Shards
from dflash_mlx.train.writing import TURNS, Pace, turn_frame, write
from tests.tiny_configs import END
from tests.train.tiny_folder import tiny_folder

LIMITS = Limits(vocab_size=260, max_rows=96, mask=257)
GREEDY = SamplingConfig()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The tiny target with its tokenizer."""
    return load_target(tiny_folder(tmp_path_factory.mktemp("target")), compute_here())


def questions(*texts):
    """Questions of one user turn each."""
    return [Question(({"role": "user", "content": text},), "chat") for text in texts]


def writer(loaded, asked=None, **changes):
    """A writer of small shards."""
    writing = Writing(
        **{"per_shard": 4, "pace": Pace(batch=4, n_tokens=24), "turn_tokens": 12, **changes}
    )
    return Writer(loaded, writing, LIMITS, asked)


def test_greedy_answers_are_those_of_mlx_lm_alone(loaded):
    """A draft trained on what batching garbled guesses what the target never says."""
    model = loaded.target.model
    prompts = [list(b"One"), list(b"Twenty two"), list(b"Three of them")]
    found = write(model, prompts, {END}, Pace(3, 12), GREEDY, mx.random.key(0))
    for prompt, tokens in zip(prompts, found, strict=True):
        steps = generate_step(mx.array(prompt), model, max_tokens=12)
        assert list(tokens) == [int(token) for token, _ in steps][: len(tokens)]


def test_drawn_text_follows_its_key(loaded):
    """Resumed with other randomness, a shard would not be the one that was lost."""
    model = loaded.target.model

    def drawn(seed):
        prompts = [list(b"Once"), list(b"Twice")]
        return write(model, prompts, {END}, Pace(2, 16), TURNS, mx.random.key(seed))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_writing_stops_when_told(loaded):
    """Ctrl-C is answered within a token, not within a shard."""
    seen = []

    def keep_on(n_tokens):
        seen.append(n_tokens)
        return len(seen) < 3

    found = write(
        loaded.target.model, [list(b"One")], {END}, Pace(1, 50), GREEDY, mx.random.key(0), keep_on
    )
    assert found is None
    assert len(seen) == 3


def test_a_turn_stands_between_what_the_template_puts_round_it(loaded):
    """Begun anywhere else, the target does not ask but answers."""
    frame = turn_frame(loaded.tokenizer, None)
    assert (frame.before, frame.end) == ((258,), END)


def test_the_target_asks_and_answers(loaded):
    """With no data at all there is still the target's own."""
    made = writer(loaded).shard(0, lambda n: True)
    assert made.written > 0
    assert len(made.samples) + sum(made.dropped.values()) == 4
    for sample in made.samples:
        assert sample.prompt[0] == 258
        assert sample.prompt[-2:] == (END, 259)
        assert len(sample.answer) >= 2


def test_shards_do_not_depend_on_what_was_written_before(loaded, tmp_path):
    """A run that was stopped must write on as if it never had been."""
    asked = questions(*(f"Number {n}?" for n in range(10)))
    whole = Shards(tmp_path / "whole")
    grow(writer(loaded, asked), whole, 10, lambda n: True, lambda *_: None)
    broken = Shards(tmp_path / "broken")
    calls = []

    def stop_in_the_second(n_tokens):
        calls.append(n_tokens)
        return len(broken) < 1 or calls[-1] < 20

    assert grow(writer(loaded, asked), broken, 10, stop_in_the_second, lambda *_: None) is None
    assert len(broken) == 1
    grow(writer(loaded, asked), broken, 10, lambda n: True, lambda *_: None)
    assert list(broken) == list(whole)
    assert [len(shard.samples) + sum(shard.dropped.values()) for shard in whole] == [4, 4, 2]


def test_questions_are_put_once(loaded, tmp_path):
    """Data sets repeat themselves; a draft would learn the repeated by heart."""
    shards = Shards(tmp_path)
    asked = questions("A?", "B?", "A?", "C?", "B?", "D?")
    samples = grow(writer(loaded, asked), shards, 10, lambda n: True, lambda *_: None)
    assert len({sample.prompt for sample in samples}) == len(samples)
    assert sum(shard.dropped["repeated"] for shard in shards) == 2
    assert {sample.kind for sample in samples} == {"chat"}


def test_writing_ends_with_enough_samples(loaded, tmp_path):
    """Every sample beyond what the plan trains on is time lost."""
    asked = questions(*(f"Number {n}?" for n in range(40)))
    told = []
    shards = Shards(tmp_path)
    grow(writer(loaded, asked), shards, 5, lambda n: True, lambda n, shard: told.append(n))
    assert told[-1] >= 5
    assert len(shards) == len(told) < 10


def test_useless_writing_is_given_up(loaded, tmp_path):
    """A target that only loops would be waited for until the end of days."""
    asked = questions(*("x" * 200 + str(n) for n in range(100)))
    with pytest.raises(BadRequest, match=r"16 texts in a row were of no use \(too long\)"):
        grow(writer(loaded, asked), Shards(tmp_path), 10, lambda n: True, lambda *_: None)


def test_a_target_without_a_template_needs_prompts(loaded, monkeypatch):
    """What to do instead, in a line."""
    monkeypatch.setattr(type(loaded.tokenizer), "has_template", False)
    with pytest.raises(BadRequest, match="give prompts with --data FILE"):
        writer(loaded)
    assert writer(loaded, questions("Hi")).shard(0, lambda n: True).written > 0


def test_a_family_that_cannot_be_batched_is_refused_by_name(loaded, monkeypatch):
    """mlx-lm's own message names a class of caches."""

    def cannot(*_):
        raise ValueError("does not yet support batching")

    monkeypatch.setattr(BatchGenerator, "next_generated", cannot)
    with pytest.raises(DFlashError, match="many sequences at a time"):
        write(loaded.target.model, [[1]], {END}, Pace(1, 2), GREEDY, mx.random.key(0))


def test_a_damaged_shard_is_named(loaded, tmp_path):
    """Half a gigabyte of samples, and one file that a full disk cut short."""
    shards = Shards(tmp_path)
    shards.append(writer(loaded, questions("A?", "B?")).shard(0, lambda n: True))
    file = next(tmp_path.glob("*.json.gz"))
    assert json.loads(gzip.decompress(file.read_bytes()))["samples"]
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(BadCheckpoint, match=r"00000.json.gz is no shard"):
        list(shards)


def test_a_full_disk_loses_no_shard(loaded, tmp_path, monkeypatch):
    """What an hour has written stays, and the message says how to go on."""
    shards = Shards(tmp_path)
    made = writer(loaded, questions("A?", "B?")).shard(0, lambda n: True)
    shards.append(made)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash_mlx.train.checkpoint.os.fsync", full)
    with pytest.raises(DFlashError, match="go on with --resume"):
        shards.append(made)
    monkeypatch.undo()
    assert list(shards) == [made]
    assert len(list(tmp_path.iterdir())) == 1
