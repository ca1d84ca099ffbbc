"""What a run will take, and what gives way where it would take too much."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_mlx.errors import BadRequest, OutOfMemoryBudget
from dflash_mlx.train.needs import Scale, fitting
from dflash_mlx.train.options import TrainConfig, resumed
from dflash_mlx.train.plan import PASSES, Corpus, Kinds, refuse_too_short, scheduled
from dflash_mlx.train.probe import Speeds, timed
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.samples import Sample
from dflash_mlx.train.selfwritten import Writing
from dflash_mlx.train.shape import Wishes
from dflash_mlx.train.shards import Shard
from dflash_mlx.train.trial import try_writing
from dflash_mlx.train.writing import Pace
from tests.tiny import draft_config

SAMPLE = Sample((1, 2), (3, 4))
SPEEDS = Speeds(write_s=2.0, feature_s=0.5, step_s=1.0, prompt_s=1.5)


def config(**changes):
    """A run of the given options."""
    return TrainConfig(**{"target": "tiny", "out": Path("out"), **changes})


def plan(corpus, speeds=SPEEDS, **changes):
    """The schedule with 4 sequences a step and 8 kinds of up to 4 prompts."""
    return scheduled(config(**changes), None, corpus, speeds, 4, Kinds(8, 4))


def test_everything_fits_into_the_minutes():
    """Minutes that turn out to be hours are no budget."""
    for minutes in (10, 30, 60, 600):
        for corpus in (Corpus(0, True), Corpus(500, False), Corpus(40, True, 90)):
            found = plan(corpus, minutes=minutes)
            assert found.total_s <= 60 * minutes + 1
            assert found.measure_s <= max(6 * minutes, 12) + 1


def test_writing_and_passes_share_the_time():
    """All time spent on writing trains nothing; none of it learns the little there is by heart."""
    found = plan(Corpus(0, True), minutes=60)
    assert found.steps * 4 / found.n_samples == pytest.approx(PASSES, rel=0.05)
    assert found.total_s == pytest.approx(3600, rel=0.02)


def test_samples_at_hand_are_not_written_again():
    """A run that goes on writes only what is missing."""
    fresh, later = plan(Corpus(0, True), minutes=60), plan(Corpus(100, True), minutes=60)
    assert later.n_samples > fresh.n_samples
    assert later.write_s == (later.n_samples - 100) * 2.0


def test_a_small_corpus_does_not_come_round_for_ever():
    """Ten hours over fifty samples teach a draft fifty answers by heart."""
    assert plan(Corpus(50, False), minutes=600).steps == 24 * 50 / 4


def test_a_data_set_gives_no_more_than_it_has():
    """Writing must end where the questions do."""
    assert plan(Corpus(0, True, most=70), minutes=600).n_samples == 70


def test_steps_and_samples_that_were_asked_for_are_kept():
    """A plan that knows better is a plan that ignores."""
    found = plan(Corpus(0, True), steps=300, samples=80)
    assert (found.steps, found.n_samples) == (300, 80)
    assert plan(Corpus(0, True), minutes=60, samples=80).n_samples == 80


def test_too_few_minutes_say_how_many_are_needed():
    """Three steps in the time there is are no training."""
    short = config(minutes=1)
    with pytest.raises(BadRequest, match=r"--minutes 1 is too short: 20 steps with 400 samples"):
        refuse_too_short(short, plan(Corpus(400, False), minutes=1))
    refuse_too_short(config(minutes=60), plan(Corpus(400, False), minutes=60))


def test_time_that_is_left_counts_and_not_the_time_asked_for():
    """Writing that took longer than planned is taken from the steps."""
    speeds, kinds = SPEEDS, Kinds(8, 4)
    found = scheduled(config(minutes=60), 1200, Corpus(100, False), speeds, 4, kinds)
    assert found.total_s <= 1201


def scale(target, **changes):
    """What the memory of a step depends on, for a tiny draft."""
    draft = draft_config(target)
    values = {"target_bytes": 10**6, "trained": 10**6, "rows": 512, "n_ids": 260, "width": 4}
    return Scale(**{"draft": draft, **values, **changes})


def test_anchors_give_way_first_then_time(target):
    """Fewer anchors cost little; computing every layer twice costs a third of the speed."""
    needs = scale(target).needs
    recipe = Recipe(steps=10, anchors=256)
    full = needs(recipe).total
    roomy, said = fitting(needs, recipe, int(full / 0.9) + 1)
    assert (roomy, said) == (recipe, ())
    fewer, said = fitting(needs, recipe, int(full * 0.6))
    assert fewer == replace(recipe, anchors=fewer.anchors)
    assert 8 <= fewer.anchors < 256
    assert said == (f"{fewer.anchors} anchors a sample instead of 256",)
    fewest = needs(replace(recipe, anchors=8)).total
    twice, said = fitting(needs, recipe, int((fewest - 1) / 0.9))
    assert twice.checkpointing
    assert said[-1].startswith("layers are computed twice")


def test_what_never_fits_is_refused_with_figures(target):
    """Out of memory after an hour of writing loses the hour."""
    needs = scale(target, target_bytes=30 * 10**9).needs
    with pytest.raises(OutOfMemoryBudget, match=r"30.0 GB at least, 30.0 GB of it for"):
        fitting(needs, Recipe(steps=1), 16 * 10**9)


def test_nothing_gives_way_where_memory_is_not_known(target):
    """No figure is no reason to train worse."""
    recipe = Recipe(steps=1)
    assert fitting(scale(target, target_bytes=10**15).needs, recipe, None) == (recipe, ())


class Ticks:
    """A clock that work moves on, by a list of seconds."""

    def __init__(self, *seconds):
        self.now, self.seconds, self.done = 0.0, list(seconds), 0

    def __call__(self):
        return self.now

    def work(self):
        self.now += self.seconds[min(self.done, len(self.seconds) - 1)]
        self.done += 1


def test_a_probe_leaves_its_first_step_out():
    """Compiling takes seconds once; counted, it would plan for a tenth of the steps."""
    ticks = Ticks(9, 1, 3, 2, 2, 2)
    assert timed(ticks.work, ticks, budget_s=100) == 2
    assert ticks.done == 6


def test_a_probe_keeps_to_its_time():
    """Two minutes are promised, on slow machines above all."""
    ticks = Ticks(50, 40)
    assert timed(ticks.work, ticks, budget_s=120) == 40
    assert ticks.now <= 130
    slow = Ticks(500)
    assert timed(slow.work, slow, budget_s=120) == 500
    assert slow.done == 1


class Slowly:
    """A writer that asks and answers token by token, a second each."""

    questions = None
    writing = Writing(pace=Pace(n_tokens=50), turn_tokens=10)

    def __init__(self, ticks):
        self.ticks = ticks

    def shard(self, index, keep_on):
        for length in (10, 50):
            for so_far in range(1, length + 1):
                self.ticks.work()
                if not keep_on(so_far):
                    return None
        return Shard((SAMPLE, SAMPLE), Counter(), 60)


def test_a_shard_that_was_written_in_time_tells_what_a_sample_takes():
    """Sixty seconds for two samples."""
    written = try_writing(Slowly(ticks := Ticks(1)), 0, ticks, budget_s=100)
    assert (written.seconds, len(written.shard.samples)) == (30, 2)


def test_a_shard_that_was_not_is_guessed_from_its_tokens():
    """A slow machine must not plan for no samples at all, nor count questions only."""
    written = try_writing(Slowly(ticks := Ticks(1)), 0, ticks, budget_s=30)
    assert written.shard is None
    assert written.seconds == pytest.approx(60 / 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minutes": 0}, "--minutes is 0"),
        ({"steps": -1}, "--steps is -1"),
        ({"minutes": 1, "steps": 1}, "give one of them"),
        ({"samples": 1}, "--samples is 1"),
        ({"max_rows": 5}, "--max-seq-length is 5"),
        ({"seed": -1}, "--seed is -1"),
        ({"weighting": "none"}, "--weighting is 'none'; it needs fixed or d-pace"),
        ({"init": "draft", "wishes": Wishes(layers=2)}, "--init gives the draft its shape"),
        ({"temperature": -1}, "temperature is -1"),
    ],
)
def test_impossible_options_are_refused_at_once(changes, words):
    """Before a model is loaded."""
    with pytest.raises(BadRequest, match=words):
        config(**changes)


def test_a_resumed_run_keeps_its_options():
    """A learning rate changed in the middle is another run under the same name."""
    stored = config(minutes=90, wishes=Wishes(layers=2), seed=3)
    assert resumed(config(), stored) == stored
    assert resumed(config(out=Path("moved")), stored) == replace(stored, out=Path("moved"))
    assert resumed(config(minutes=90), stored) == stored
    with pytest.raises(BadRequest, match="begun with minutes 90 and not 30"):
        resumed(config(minutes=30), stored)
    with pytest.raises(BadRequest, match="begun with target tiny and not other"):
        resumed(config(target="other"), stored)
    assert TrainConfig.from_values(stored.as_values()) == stored


def test_a_run_is_gone_on_with_from_any_folder(tmp_path, monkeypatch):
    """What was typed from one folder must mean the same file from another."""
    (tmp_path / "prompts.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    stored = TrainConfig.from_values(config(data="prompts.jsonl").as_values())
    assert resumed(config(data="prompts.jsonl"), stored).data == str(tmp_path / "prompts.jsonl")
    monkeypatch.chdir(tmp_path.parent)
    assert resumed(config(), stored).data == str(tmp_path / "prompts.jsonl")
    assert resumed(config(data=f"{tmp_path.name}/prompts.jsonl"), stored) == stored
    (tmp_path / "prompts.jsonl").rename(tmp_path / "moved.jsonl")
    moved = str(tmp_path / "moved.jsonl")
    assert resumed(config(data=moved), stored) == replace(stored, data=moved)
    old = config(data="prompts.jsonl")  # as runs were written down before
    assert resumed(config(data="prompts.jsonl"), old) == old
