"""A whole run on a tiny target: plan, generation, training, evaluation, stop and resume."""

import gzip
import io
import itertools
import json
import shutil
from dataclasses import replace

import mlx.core as mx
import pytest

from dflash_mlx.engine.load import LoadHooks
from dflash_mlx.errors import BadRequest, DFlashError, OutOfMemoryBudget, PairMismatch
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import load_target
from dflash_mlx.system.machine import this_machine
from dflash_mlx.train.loop.evaluate import held_out_prompts
from dflash_mlx.train.model.shape import DraftOverrides
from dflash_mlx.train.run import monitor, planning, probe, setup
from dflash_mlx.train.run.job import TrainingJob
from dflash_mlx.train.run.monitor import TrainingHooks
from dflash_mlx.train.run.options import TrainConfig
from dflash_mlx.train.run.planning import first_plan
from dflash_mlx.train.run.run_folder import RunFolder
from dflash_mlx.train.run.setup import set_up
from tests.train.tiny_folder import tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny target on disk, and a file of prompts next to it."""
    made = tiny_folder(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=4)
    rows = [{"prompt": f"Say {n}", "response": "no"} for n in range(40)]
    (made.parent / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return made


@pytest.fixture(scope="module", autouse=True)
def brief():
    """Evaluate a few tokens only: the figures are not tested here."""

    def few(tokenizer, thinking):
        return held_out_prompts(tokenizer, thinking, per_kind=1)[:3]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "EVALUATED_TOKENS", 6)
        patch.setattr(monitor, "EVALUATED_TOKENS", 6)
        patch.setattr(setup, "held_out_prompts", few)
        patch.setattr(probe, "_MAX_REPEATS", 1)
        patch.setattr(setup, "MAX_BATCH", 16)  # several shards
        yield


class Clock:
    """A clock that advances by 1 ms per call, so that plans do not depend on the machine."""

    def __init__(self):
        self._calls = itertools.count()

    def __call__(self):
        return next(self._calls) * 0.001


def options(folder, out, **changes):
    """Options of a short run."""
    values = {
        "target": str(folder),
        "out": out,
        "data": str(folder.parent / "rows.jsonl"),
        "steps": 6,
        "samples": 34,
        "overrides": DraftOverrides(layers=1, block_size=4),
        "max_seq_length": 80,
    }
    return TrainConfig(**{**values, **changes})


def train_run(config, hooks=None, machine=None):
    """Start or resume a run as the command does; return its result."""
    run = RunFolder(config.run_folder)
    if not config.run_folder.exists():
        run.create(force=False)
    parts = set_up(config, machine or this_machine(), LoadHooks())
    with run:
        run.update_state(config=config)
        job = TrainingJob(parts, run, hooks or TrainingHooks(), Clock())
        if run.state().n_samples is None:
            job.adopt(first_plan(parts, job.shards, run.path, Clock()))
        return job.run()


def stopping(phase, done):
    """Hooks that ask to stop once `done` of a phase is reached."""
    seen = []

    def on_progress(progress):
        if progress.phase == phase and progress.done >= done:
            seen.append(progress)

    return TrainingHooks(on_progress, lambda: bool(seen))


def outcome_of(config):
    """Return what must not depend on when a run was stopped."""
    run = RunFolder(config.run_folder)
    return run.history(), run.best().arrays, mx.load(str(run.checkpoint))


def equal(one, other):
    """Return whether two tables of arrays are bitwise equal."""
    return one.keys() == other.keys() and all(mx.array_equal(one[k], other[k]) for k in one)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """A run that was not stopped."""
    config = options(folder, tmp_path_factory.mktemp("whole") / "draft")
    return config, train_run(config)


def test_a_run_publishes_a_draft_that_loads(whole, folder):
    """The purpose of the command."""
    config, result = whole
    assert result.finished
    assert result.out == config.out
    target = load_target(folder, compute_here()).target
    draft = load_draft(config.out, target, compute_here())
    assert draft.block_size == 4
    card = (config.out / "README.md").read_text()
    assert "tokens per round" in card
    assert str(folder.parent) not in card, "a path of this machine"
    assert str(folder.parent) not in (config.out / "training.json").read_text()
    assert "<svg" in (config.out / "curves.html").read_text()
    evaluations = result.evaluations
    assert evaluations[-1]["step"] == 6
    assert list(evaluations[-1]["decoding"]["by_kind"]) == ["chat", "code", "arithmetic"]
    assert result.facts["data"]["answers"] == "greedy", (
        "the answers in the file come from another model"
    )
    assert [line["step"] for line in result.history if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert not (config.run_folder / "features").exists(), "gigabytes of features are left"


@pytest.mark.parametrize(
    ("phase", "done"), [("generate", 1), ("train", 2), ("train", 6), ("evaluate", 6)]
)
def test_a_resumed_run_equals_an_uninterrupted_one(whole, folder, tmp_path, phase, done):
    """History, best weights and checkpoint differed when a stop lost part of the state."""
    config = options(folder, tmp_path / "draft")
    stopped = train_run(config, stopping(phase, done))
    assert not stopped.finished
    result = train_run(config)
    assert result.finished
    (history, best, checkpoint), expected = outcome_of(config), outcome_of(whole[0])
    assert history == expected[0]
    assert equal(best, expected[1])
    assert equal(checkpoint, expected[2])


def test_a_stopped_run_publishes_its_best_draft(folder, tmp_path, monkeypatch):
    """After Ctrl-C, the best draft so far is usable at once."""
    monkeypatch.setattr("dflash_mlx.train.run.job.evaluation_interval", lambda steps, times: 2)
    config = options(folder, tmp_path / "draft")
    result = train_run(config, stopping("train", 3))
    assert not result.finished
    assert (result.out / "model.safetensors").exists()
    assert json.loads((result.out / "training.json").read_text())["finished"] is False
    assert (config.run_folder / "features").exists()
    assert "<svg" in (config.run_folder / "curves.html").read_text()


def test_a_draft_can_be_initialised_from_another(whole, folder, tmp_path):
    """A fine-tuned target's draft is initialised from the draft of its base."""
    first, _ = whole
    config = options(
        folder, tmp_path / "more", init=str(first.out), overrides=DraftOverrides(), steps=2
    )
    assert train_run(config).finished
    assert "Initialised from" in (config.out / "README.md").read_text()
    shape = json.loads((config.out / "config.json").read_text())
    assert shape == json.loads((first.out / "config.json").read_text())


def test_init_can_reduce_the_vocabulary(whole, folder, tmp_path):
    """Most of a small draft's time is its head, and few tokens make up most of the text."""
    first, _ = whole
    config = options(
        folder,
        tmp_path / "cut",
        init=str(first.out),
        overrides=DraftOverrides(vocabulary=50),
        steps=2,
    )
    assert train_run(config).finished
    shape = json.loads((config.out / "config.json").read_text())
    assert shape["draft_vocab_size"] == 50
    weights = mx.load(str(config.out / "model.safetensors"))
    assert weights["lm_head.weight"].shape[0] == weights["d2t"].size == 50


def test_token_ids_are_trained_on_unchanged(folder, tmp_path):
    """Token ids are answers of the target already; generating them again wastes hours."""
    rows = [[[258, 65 + n, 256, 259], [70 + n, 71, 72 + n, 73, 256]] for n in range(12)]
    (tmp_path / "ids.json").write_text(json.dumps(rows))
    config = options(folder, tmp_path / "draft", data=str(tmp_path / "ids.json"))
    result = train_run(config)
    assert result.finished
    assert not config.run_folder.joinpath("data").exists()
    assert result.facts["data"]["source"] == "ids.json"
    assert result.facts["data"]["answers"] is None


def test_without_data_the_target_generates_the_prompts(folder, tmp_path):
    """`--data self` needs only a target."""
    result = train_run(options(folder, tmp_path / "draft", data="self", samples=3, steps=1))
    assert result.finished
    assert result.facts["data"]["source"] == "self"


@pytest.mark.parametrize("overrides", [{"vocabulary": 60}, {"dflash2": True}])
def test_other_kinds_of_drafts_are_trained(folder, tmp_path, overrides):
    """A reduced vocabulary and DFlash 2 result in drafts that load."""
    config = options(
        folder,
        tmp_path / "draft",
        overrides=DraftOverrides(layers=1, block_size=4, **overrides),
        steps=2,
    )
    assert train_run(config).finished
    load_draft(config.out, load_target(folder, compute_here()).target, compute_here())


def test_a_target_larger_than_memory_is_refused_before_loading(folder, tmp_path):
    """The run would swap for an hour and then be killed."""
    machine = replace(this_machine(), usable_bytes=1000)
    with pytest.raises(OutOfMemoryBudget, match=r"needs about .* GB to generate"):
        set_up(options(folder, tmp_path / "draft"), machine, LoadHooks())


def test_data_without_usable_samples_are_refused(folder, tmp_path):
    """Empty and one-token answers leave no sample, and ended in a traceback."""
    (tmp_path / "ids.json").write_text(json.dumps([[[1], []], [[2], [3]]]))
    config = options(folder, tmp_path / "draft", data=str(tmp_path / "ids.json"))
    with pytest.raises(BadRequest, match="no usable sample: dropped 2 without"):
        set_up(config, this_machine(), LoadHooks())


def test_thinking_without_a_thinking_mode_is_refused(folder, tmp_path):
    """An ignored option would give a draft for another mode than its card states."""
    with pytest.raises(BadRequest, match="has no thinking mode"):
        set_up(options(folder, tmp_path / "draft", thinking=True), this_machine(), LoadHooks())


def test_init_refuses_a_draft_of_another_target(whole, tmp_path):
    """Its target layers do not exist in the other target."""
    other = tiny_folder(tmp_path / "other", num_hidden_layers=3)
    config = options(other, tmp_path / "draft", init=str(whole[0].out), overrides=DraftOverrides())
    with pytest.raises(PairMismatch):
        set_up(config, this_machine(), LoadHooks())


def test_a_loss_that_stays_nan_ends_the_run_and_keeps_the_checkpoint(folder, tmp_path, monkeypatch):
    """Steps with a NaN loss waste hours and must not overwrite the checkpoint."""
    config = options(folder, tmp_path / "draft", steps=12)
    train_run(config, stopping("train", 3))
    checkpoint = (config.run_folder / "checkpoint.safetensors").read_bytes()
    from dflash_mlx.train.loop import loss

    block_loss = loss.block_loss

    def nan_loss(*given):
        found = block_loss(*given)
        return found._replace(loss=found.loss * float("nan"))

    monkeypatch.setattr(loss, "block_loss", nan_loss)
    with pytest.raises(DFlashError, match="the last checkpoint is not affected"):
        train_run(config)
    assert (config.run_folder / "checkpoint.safetensors").read_bytes() == checkpoint


@pytest.fixture(scope="module")
def stopped(folder, tmp_path_factory):
    """A run that was stopped after its second evaluation of three."""
    config = options(folder, tmp_path_factory.mktemp("stopped") / "draft")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dflash_mlx.train.run.job.evaluation_interval", lambda steps, times: 2)
        train_run(config, stopping("train", 5))
    return config


def truncated(data):
    """Return the first half of `data`."""
    return data[: len(data) // 2]


def flipped(data):
    """Return `data` with a byte of its header changed."""
    return data[:10] + bytes([data[10] ^ 0x55]) + data[11:]


FILES = ("run.json", "history.jsonl", "checkpoint.safetensors", "best.safetensors")


@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.parametrize("name", [*FILES, "data/00000.json.gz", "features"])
def test_a_damaged_run_is_resumed_or_refused_in_one_line(stopped, tmp_path, name, damage):
    """Damaged files of a run ended in tracebacks of json, zlib and MLX."""
    config = replace(stopped, out=tmp_path / "draft")
    shutil.copytree(stopped.run_folder, config.run_folder)
    path = config.run_folder / name
    file = next(path.iterdir()) if path.is_dir() else path
    file.write_bytes(damage(file.read_bytes()))
    if name in ("history.jsonl", "features"):  # their content is ignored or computed again
        assert train_run(config).finished
        return
    with pytest.raises(DFlashError, match=r"delete it, and --resume|start again with --force") as e:
        train_run(config)
    assert file.name in str(e.value)
    assert len(str(e.value).splitlines()) == 1
    assert len(str(e.value)) < 800
    if name != "run.json":
        file.unlink()
        assert train_run(config).finished


def test_weights_of_another_draft_are_refused(stopped, tmp_path):
    """Valid files with other shapes were published, or failed inside MLX."""
    config = replace(stopped, out=tmp_path / "draft")
    shutil.copytree(stopped.run_folder, config.run_folder)
    run = RunFolder(config.run_folder)
    arrays = run.best().arrays
    name = next(name for name in arrays if name.endswith("q_proj.weight"))
    run.save_best({**arrays, name: arrays[name][:-1]}, 4, 1.5)
    with pytest.raises(DFlashError, match=r"best\.safetensors contains the weights of another"):
        train_run(config)


@pytest.mark.parametrize("token", [260, -1, 2**40, 1.5, "x", None])
def test_token_ids_outside_the_vocabulary_in_a_shard_are_refused(stopped, tmp_path, token):
    """They indexed the embedding out of range, or overflowed the array of ids."""
    config = replace(stopped, out=tmp_path / "draft")
    shutil.copytree(stopped.run_folder, config.run_folder)
    file = config.run_folder / "data/00000.json.gz"
    table = json.loads(gzip.decompress(file.read_bytes()))
    table["samples"][0][1][0] = token
    file.write_bytes(gzip.compress(json.dumps(table).encode()))
    with pytest.raises(DFlashError, match=r"00000\.json\.gz.*in place of a token id"):
        train_run(config)


def test_code_of_a_tokenizer_is_never_run(folder, tmp_path, monkeypatch):
    """transformers asked on stdin whether to run it, and ran it on "y"."""
    hostile = tmp_path / "hostile"
    shutil.copytree(folder, hostile)
    (hostile / "evil.py").write_text(f"open({str(tmp_path / 'CANARY')!r}, 'w').write('run')\n")
    file = hostile / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.E", "evil.E"]}}
    file.write_text(json.dumps(settings))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(DFlashError, match="code"):
        set_up(options(hostile, tmp_path / "draft"), this_machine(), LoadHooks())
    assert not (tmp_path / "CANARY").exists()
