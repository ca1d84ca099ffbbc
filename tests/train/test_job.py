"""A whole run on a tiny target: planned, written, trained, measured, stopped and gone on with."""

import itertools
import json
from dataclasses import replace

import mlx.core as mx
import pytest

from dflash_mlx.engine.load import LoadHooks
from dflash_mlx.errors import BadRequest, DFlashError, OutOfMemoryBudget, PairMismatch
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import load_target
from dflash_mlx.system.machine import this_machine
from dflash_mlx.train import measuring, planning, preparing, trial
from dflash_mlx.train.evaluate import held_out_prompts
from dflash_mlx.train.job import Job
from dflash_mlx.train.options import TrainConfig
from dflash_mlx.train.planning import first_plan
from dflash_mlx.train.preparing import prepare
from dflash_mlx.train.reports import Watcher
from dflash_mlx.train.run_folder import RunFolder
from dflash_mlx.train.shape import Wishes
from tests.train.tiny_folder import tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny target on disk, and prompts beside it."""
    made = tiny_folder(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=4)
    rows = [{"prompt": f"Say {n}", "response": "no"} for n in range(40)]
    (made.parent / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return made


@pytest.fixture(scope="module", autouse=True)
def brief():
    """Measure little; what is measured is not what is tested."""

    def few(tokenizer, thinking):
        return held_out_prompts(tokenizer, thinking, per_kind=1)[:3]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "MEASURED_TOKENS", 6)
        patch.setattr(measuring, "MEASURED_TOKENS", 6)
        patch.setattr(preparing, "held_out_prompts", few)
        patch.setattr(trial, "_TRIED", 1)
        yield


class Clock:
    """A clock that goes on a little with every look, so that plans do not depend on the machine."""

    def __init__(self):
        self._looks = itertools.count()

    def __call__(self):
        return next(self._looks) * 0.001


def options(folder, out, **changes):
    """Options of a short run."""
    values = {
        "target": str(folder),
        "out": out,
        "data": str(folder.parent / "rows.jsonl"),
        "steps": 6,
        "samples": 34,
        "wishes": Wishes(layers=1, block=4),
        "max_rows": 80,
    }
    return TrainConfig(**{**values, **changes})


def work(config, watcher=None, machine=None):
    """Begin a run, or go on with one, as the command does; return its result."""
    run = RunFolder(config.run_folder)
    if not config.run_folder.exists():
        run.begin(force=False)
    prepared = prepare(config, machine or this_machine(), LoadHooks())
    with run:
        run.know(config=config.as_values())
        job = Job(prepared, run, watcher or Watcher(), Clock())
        if "n_samples" not in run.facts():
            job.adopt(first_plan(prepared, job.shards, run.path, Clock()))
        return job.run()


def stopping(phase, done):
    """A watcher that asks to stop once so much of a phase is done."""
    seen = []

    def report(report):
        if report.phase == phase and report.done >= done:
            seen.append(report)

    return Watcher(report, lambda: bool(seen))


def without_times(config):
    """What a run left that must not depend on when it was stopped."""
    run = RunFolder(config.run_folder)
    return run.history(), run.best_weights(), mx.load(str(run.checkpoint))


def same(one, other):
    """Whether two tables of arrays are equal to the last bit."""
    return one.keys() == other.keys() and all(mx.array_equal(one[k], other[k]) for k in one)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """A run that nothing stopped."""
    config = options(folder, tmp_path_factory.mktemp("whole") / "draft")
    return config, work(config)


def test_a_run_ends_in_a_draft_that_decodes(whole, folder):
    """The promise of the command, from nothing but a target."""
    config, result = whole
    assert result.finished
    assert result.out == config.out
    target = load_target(folder, compute_here()).target
    draft = load_draft(config.out, target, compute_here())
    assert draft.block_size == 4
    card = (config.out / "README.md").read_text()
    assert "tokens a round" in card
    assert str(folder.parent) not in card, "a place on this machine"
    assert str(folder.parent) not in (config.out / "training.json").read_text()
    assert "<svg" in (config.out / "curves.html").read_text()
    measured = result.measured
    assert measured[-1]["step"] == 6
    assert list(measured[-1]["sequential"]["by_kind"]) == ["chat", "code", "arithmetic"]
    assert result.facts["data"]["answers"] == "greedy", "the file's answers are another model's"
    assert [line["step"] for line in result.history if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert not (config.run_folder / "features").exists(), "gigabytes left behind"


@pytest.mark.parametrize(
    ("phase", "done"), [("write", 1), ("train", 2), ("train", 6), ("measure", 6)]
)
def test_a_stopped_run_ends_as_if_it_had_not_been(whole, folder, tmp_path, phase, done):
    """Bit for bit: history, best weights, and the state of training."""
    config = options(folder, tmp_path / "draft")
    stopped = work(config, stopping(phase, done))
    assert not stopped.finished
    result = work(config)
    assert result.finished
    (history, best, checkpoint), expected = without_times(config), without_times(whole[0])
    assert history == expected[0]
    assert same(best, expected[1])
    assert same(checkpoint, expected[2])


def test_what_was_reached_is_there_after_a_stop(folder, tmp_path, monkeypatch):
    """Ctrl-C after a night: the best draft so far is usable at once."""
    monkeypatch.setattr("dflash_mlx.train.job.interval", lambda steps, times: 2)
    config = options(folder, tmp_path / "draft")
    result = work(config, stopping("train", 3))
    assert not result.finished
    assert (result.out / "model.safetensors").exists()
    assert json.loads((result.out / "training.json").read_text())["finished"] is False
    assert (config.run_folder / "features").exists()
    assert "<svg" in (config.run_folder / "curves.html").read_text()


def test_a_draft_is_gone_on_from(whole, folder, tmp_path):
    """A fine-tune's draft begins with the draft of what it was tuned from."""
    first, _ = whole
    config = options(folder, tmp_path / "more", init=str(first.out), wishes=Wishes(), steps=2)
    assert work(config).finished
    assert "Begun from" in (config.out / "README.md").read_text()
    shape = json.loads((config.out / "config.json").read_text())
    assert shape == json.loads((first.out / "config.json").read_text())


def test_a_draft_gone_on_from_may_get_a_smaller_vocabulary(whole, folder, tmp_path):
    """The head is most of a small draft's time, and few tokens are most of all text."""
    first, _ = whole
    config = options(
        folder, tmp_path / "cut", init=str(first.out), wishes=Wishes(vocabulary=50), steps=2
    )
    assert work(config).finished
    shape = json.loads((config.out / "config.json").read_text())
    assert shape["draft_vocab_size"] == 50
    weights = mx.load(str(config.out / "model.safetensors"))
    assert weights["lm_head.weight"].shape[0] == weights["d2t"].size == 50


def test_token_ids_are_trained_on_as_they_are(folder, tmp_path):
    """The form of the corpora that exist; nothing is written for them."""
    rows = [[[258, 65 + n, 256, 259], [70 + n, 71, 72 + n, 73, 256]] for n in range(12)]
    (tmp_path / "ids.json").write_text(json.dumps(rows))
    config = options(folder, tmp_path / "draft", data=str(tmp_path / "ids.json"))
    result = work(config)
    assert result.finished
    assert not config.run_folder.joinpath("data").exists()
    assert result.facts["data"]["source"] == "ids.json"
    assert result.facts["data"]["answers"] is None


def test_with_no_data_the_target_asks_too(folder, tmp_path):
    """The promise that nothing but a target is needed."""
    result = work(options(folder, tmp_path / "draft", data="self", samples=3, steps=1))
    assert result.finished
    assert result.facts["data"]["source"] == "self"


@pytest.mark.parametrize("wishes", [{"vocabulary": 60}, {"second": True}])
def test_other_kinds_of_drafts_are_trained(folder, tmp_path, wishes):
    """A reduced vocabulary and DFlash 2 go all the way through to a draft that loads."""
    config = options(
        folder, tmp_path / "draft", wishes=Wishes(layers=1, block=4, **wishes), steps=2
    )
    assert work(config).finished
    load_draft(config.out, load_target(folder, compute_here()).target, compute_here())


def test_a_target_that_does_not_fit_is_refused_before_it_is_loaded(folder, tmp_path):
    """Swapping for an hour and then dying loses the hour."""
    machine = replace(this_machine(), usable_bytes=1000)
    with pytest.raises(OutOfMemoryBudget, match=r"takes about .* GB while it writes"):
        prepare(options(folder, tmp_path / "draft"), machine, LoadHooks())


def test_a_corpus_of_nothing_is_refused(folder, tmp_path):
    """Empty and one-token answers are counted, and when none is left the run ends in words."""
    (tmp_path / "ids.json").write_text(json.dumps([[[1], []], [[2], [3]]]))
    config = options(folder, tmp_path / "draft", data=str(tmp_path / "ids.json"))
    with pytest.raises(BadRequest, match="no sample that can be learned from: dropped 2 without"):
        prepare(config, this_machine(), LoadHooks())


def test_thinking_without_a_thinking_mode_is_refused(folder, tmp_path):
    """An option that is taken and ignored makes a draft for another mode than it says."""
    with pytest.raises(BadRequest, match="has no thinking mode"):
        prepare(options(folder, tmp_path / "draft", thinking=True), this_machine(), LoadHooks())


def test_a_draft_of_another_target_is_not_gone_on_from(whole, tmp_path):
    """Its taps would be read where the other target has none."""
    other = tiny_folder(tmp_path / "other", num_hidden_layers=3)
    config = options(other, tmp_path / "draft", init=str(whole[0].out), wishes=Wishes())
    with pytest.raises(PairMismatch):
        prepare(config, this_machine(), LoadHooks())


def test_a_loss_that_stays_nan_ends_a_run_and_keeps_the_checkpoint(folder, tmp_path, monkeypatch):
    """Hours of steps on NaN weights teach nothing and burn a Mac."""
    config = options(folder, tmp_path / "draft", steps=12)
    work(config, stopping("train", 3))
    checkpoint = (config.run_folder / "checkpoint.safetensors").read_bytes()
    from dflash_mlx.train import objective

    judge = objective.judge

    def broken(*given):
        judged = judge(*given)
        return judged._replace(loss=judged.loss * float("nan"))

    monkeypatch.setattr(objective, "judge", broken)
    with pytest.raises(DFlashError, match="the last checkpoint is good"):
        work(config)
    assert (config.run_folder / "checkpoint.safetensors").read_bytes() == checkpoint
