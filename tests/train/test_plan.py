"""The plan of a run: schedule, memory, probe and options."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_mlx.errors import BadRequest, OutOfMemoryBudget
from dflash_mlx.system.machine import this_machine
from dflash_mlx.train.data.corpus import CorpusConfig, Shard
from dflash_mlx.train.data.generation import GenerationLimits
from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.model.shape import DraftOverrides
from dflash_mlx.train.run.memory import (
    MAX_BATCH,
    MemoryModel,
    batch_size_for,
    fit_to_memory,
    memory_bound,
)
from dflash_mlx.train.run.options import TrainConfig, resume_config
from dflash_mlx.train.run.probe import StageSeconds, median_seconds, probe_generation
from dflash_mlx.train.run.schedule import (
    EPOCHS,
    CorpusSize,
    PromptKinds,
    check_minutes,
    make_schedule,
)
from tests.tiny import draft_config

SAMPLE = Sample((1, 2), (3, 4))
STAGES = StageSeconds(generate_s=2.0, feature_s=0.5, step_s=1.0, prompt_s=1.5)


def config(**changes):
    """Return a run's options."""
    return TrainConfig(**{"target": "tiny", "out": Path("out"), **changes})


def plan(corpus, stages=STAGES, **changes):
    """Return the schedule for 4 samples per step and 8 kinds of up to 4 prompts."""
    return make_schedule(config(**changes), None, corpus, stages, 4, PromptKinds(8, 4))


def test_everything_fits_into_the_minutes():
    """A run that exceeds its minutes cannot be planned around."""
    for minutes in (10, 30, 60, 600):
        for corpus in (CorpusSize(0, True), CorpusSize(500, False), CorpusSize(40, True, 90)):
            found = plan(corpus, minutes=minutes)
            assert found.total_s <= 60 * minutes + 1
            assert found.evaluate_s <= max(6 * minutes, 12) + 1


def test_generation_and_epochs_share_the_time():
    """Too much generation leaves no training; too little is memorised."""
    found = plan(CorpusSize(0, True), minutes=60)
    assert found.steps * 4 / found.n_samples == pytest.approx(EPOCHS, rel=0.05)
    assert found.total_s == pytest.approx(3600, rel=0.02)


def test_existing_samples_are_not_generated_again():
    """A resumed run generates the missing samples only."""
    fresh, later = plan(CorpusSize(0, True), minutes=60), plan(CorpusSize(100, True), minutes=60)
    assert later.n_samples > fresh.n_samples
    assert later.generate_s == (later.n_samples - 100) * 2.0


def test_epochs_are_bounded():
    """Ten hours over fifty samples memorise fifty answers."""
    assert plan(CorpusSize(50, False), minutes=600).steps == 24 * 50 / 4


def test_samples_are_bounded_by_the_data_set():
    """There is one answer per prompt."""
    assert plan(CorpusSize(0, True, max_samples=70), minutes=600).n_samples == 70


def test_given_steps_and_samples_are_used():
    """The plan replaced numbers that were given explicitly."""
    found = plan(CorpusSize(0, True), steps=300, samples=80)
    assert (found.steps, found.n_samples) == (300, 80)
    assert plan(CorpusSize(0, True), minutes=60, samples=80).n_samples == 80


@pytest.mark.parametrize("steps", [6, 40, 300, 5000])
def test_with_steps_the_result_does_not_depend_on_measured_times(steps):
    """A busy machine planned 2 evaluations instead of 3 and published another draft."""
    slow = StageSeconds(generate_s=70.0, feature_s=0.1, step_s=0.02, prompt_s=90.0)
    for corpus in (CorpusSize(0, True), CorpusSize(500, False), CorpusSize(40, True, 90)):
        one, other = plan(corpus, steps=steps), plan(corpus, slow, steps=steps)
        assert one.evaluations == other.evaluations
        assert (one.n_samples, one.steps) == (other.n_samples, other.steps)


def test_with_steps_the_recipe_does_not_depend_on_free_memory():
    """Other programs on the machine reduced the anchors, and with them changed the draft."""
    idle = replace(this_machine(), device="cpu", memory_bytes=16 * 10**9, usable_bytes=15 * 10**9)
    busy = replace(idle, usable_bytes=2 * 10**9)
    steps = config(steps=10)
    assert memory_bound(steps, idle) == memory_bound(steps, busy) == 8 * 10**9
    assert memory_bound(config(), busy) == 2 * 10**9


def test_the_batch_size_fits_into_memory():
    """Small batches lost most of the time on CPU, and large ones did not fit large targets."""
    assert batch_size_for(16 * 10**9, 10**9, 40_000 * 1024) == MAX_BATCH
    assert batch_size_for(16 * 10**9, 14 * 10**9, 100_000 * 1024) == 9
    assert batch_size_for(16 * 10**9, 17 * 10**9, 100_000 * 1024) == 1
    assert batch_size_for(None, 10**9, 10**9) == MAX_BATCH


def test_too_few_minutes_are_refused_with_the_minutes_needed():
    """A run of three steps does not train anything."""
    short = config(minutes=1)
    with pytest.raises(BadRequest, match=r"--minutes 1 is too short: 20 steps with 400 samples"):
        check_minutes(short, plan(CorpusSize(400, False), minutes=1))
    check_minutes(config(minutes=60), plan(CorpusSize(400, False), minutes=60))


def test_the_remaining_time_bounds_the_steps():
    """Generation that took longer than planned reduces the number of steps."""
    stages, kinds = STAGES, PromptKinds(8, 4)
    found = make_schedule(config(minutes=60), 1200, CorpusSize(100, False), stages, 4, kinds)
    assert found.total_s <= 1201


def memory_model(target, **changes):
    """Return the memory model of a tiny draft."""
    draft = draft_config(target)
    values = {
        "target_bytes": 10**6,
        "trained": 10**6,
        "n_tokens": 512,
        "n_ids": 260,
        "item_size": 4,
    }
    return MemoryModel(**{"draft": draft, **values, **changes})


def test_anchors_are_reduced_before_checkpointing(target):
    """Fewer anchors cost little; gradient checkpointing costs a third of the throughput."""
    step_memory = memory_model(target).step_memory
    recipe = Recipe(steps=10, anchors=256)
    full = step_memory(recipe).total
    roomy, reductions = fit_to_memory(step_memory, recipe, int(full / 0.9) + 1)
    assert (roomy, reductions) == (recipe, ())
    fewer, reductions = fit_to_memory(step_memory, recipe, int(full * 0.6))
    assert fewer == replace(recipe, anchors=fewer.anchors)
    assert 8 <= fewer.anchors < 256
    assert reductions == (f"{fewer.anchors} anchors per sample instead of 256",)
    fewest = step_memory(replace(recipe, anchors=8)).total
    checkpointed, reductions = fit_to_memory(step_memory, recipe, int((fewest - 1) / 0.9))
    assert checkpointed.checkpointing
    assert reductions[-1].startswith("gradient checkpointing")


def test_a_step_larger_than_memory_is_refused_with_figures(target):
    """Running out of memory after an hour of generation loses the hour."""
    step_memory = memory_model(target, target_bytes=30 * 10**9).step_memory
    with pytest.raises(
        OutOfMemoryBudget, match=r"at least 30.0 GB, of which the target takes 30.0 GB"
    ):
        fit_to_memory(step_memory, Recipe(steps=1), 16 * 10**9)


def test_nothing_is_reduced_if_the_memory_is_unknown(target):
    """Without a figure there is nothing to fit to."""
    recipe = Recipe(steps=1)
    assert fit_to_memory(memory_model(target, target_bytes=10**15).step_memory, recipe, None) == (
        recipe,
        (),
    )


class Ticks:
    """A clock that each call of `work` advances by the next of the given seconds."""

    def __init__(self, *seconds):
        self.now, self.seconds, self.done = 0.0, list(seconds), 0

    def __call__(self):
        return self.now

    def work(self):
        self.now += self.seconds[min(self.done, len(self.seconds) - 1)]
        self.done += 1


def test_a_probe_ignores_its_first_call():
    """Compilation takes seconds once; included, the plan had a tenth of the steps."""
    ticks = Ticks(9, 1, 3, 2, 2, 2)
    assert median_seconds(ticks.work, ticks, budget_s=100) == 2
    assert ticks.done == 6


def test_a_probe_keeps_its_time_budget():
    """The command promises two minutes at most, also on slow machines."""
    ticks = Ticks(50, 40)
    assert median_seconds(ticks.work, ticks, budget_s=120) == 40
    assert ticks.now <= 130
    slow = Ticks(500)
    assert median_seconds(slow.work, slow, budget_s=120) == 500
    assert slow.done == 1


class SlowWriter:
    """A writer whose turns and answers take a second per token."""

    prompts = None
    config = CorpusConfig(limits=GenerationLimits(max_tokens=50), turn_tokens=10)

    def __init__(self, ticks):
        self.ticks = ticks

    def make_shard(self, index, should_continue):
        for length in (10, 50):
            for n_tokens in range(1, length + 1):
                self.ticks.work()
                if not should_continue(n_tokens):
                    return None
        return Shard((SAMPLE, SAMPLE), Counter(), 60)


def test_a_finished_shard_gives_the_seconds_per_sample():
    """Sixty seconds for two samples are thirty per sample."""
    probe = probe_generation(SlowWriter(ticks := Ticks(1)), 0, ticks, budget_s=100)
    assert (probe.seconds, len(probe.shard.samples)) == (30, 2)


def test_an_unfinished_shard_is_estimated_from_its_tokens():
    """On a slow machine the plan had no samples, or counted the user turns only."""
    probe = probe_generation(SlowWriter(ticks := Ticks(1)), 0, ticks, budget_s=30)
    assert probe.shard is None
    assert probe.seconds == pytest.approx(60 / 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minutes": 0}, "--minutes is 0"),
        ({"steps": -1}, "--steps is -1"),
        ({"minutes": 1, "steps": 1}, "give one of them"),
        ({"samples": 1}, "--samples is 1"),
        ({"max_seq_length": 5}, "--max-seq-length is 5"),
        ({"seed": -1}, "--seed is -1"),
        ({"weighting": "none"}, "--weighting is 'none'; it needs fixed or d-pace"),
        (
            {"init": "draft", "overrides": DraftOverrides(layers=2)},
            "--init determines the draft's shape",
        ),
        ({"temperature": -1}, "temperature is -1"),
    ],
)
def test_invalid_options_are_refused(changes, message):
    """They were found after the model had been loaded."""
    with pytest.raises(BadRequest, match=message):
        config(**changes)


def test_a_resumed_run_keeps_its_options():
    """A learning rate that changes in the middle gives a run that cannot be repeated."""
    stored = config(minutes=90, overrides=DraftOverrides(layers=2), seed=3)
    assert resume_config(config(), stored) == stored
    assert resume_config(config(out=Path("moved")), stored) == replace(stored, out=Path("moved"))
    assert resume_config(config(minutes=90), stored) == stored
    with pytest.raises(BadRequest, match="has minutes 90 and the command has 30"):
        resume_config(config(minutes=30), stored)
    with pytest.raises(BadRequest, match="has target tiny and the command has other"):
        resume_config(config(target="other"), stored)
    assert TrainConfig.from_values(stored.as_values()) == stored


def test_a_run_can_be_resumed_from_any_folder(tmp_path, monkeypatch):
    """A relative path named another file after a change of folder."""
    (tmp_path / "prompts.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    stored = TrainConfig.from_values(config(data="prompts.jsonl").as_values())
    assert resume_config(config(data="prompts.jsonl"), stored).data == str(
        tmp_path / "prompts.jsonl"
    )
    monkeypatch.chdir(tmp_path.parent)
    assert resume_config(config(), stored).data == str(tmp_path / "prompts.jsonl")
    assert resume_config(config(data=f"{tmp_path.name}/prompts.jsonl"), stored) == stored
    (tmp_path / "prompts.jsonl").rename(tmp_path / "moved.jsonl")
    moved = str(tmp_path / "moved.jsonl")
    assert resume_config(config(data=moved), stored) == replace(stored, data=moved)
    old = config(data="prompts.jsonl")
    assert resume_config(config(data="prompts.jsonl"), old) == old
