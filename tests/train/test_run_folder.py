"""The folder of a run: state, history, best weights and lock."""

import mlx.core as mx
import pytest

from dflash_mlx.errors import BadCheckpoint, BadRequest, DFlashError
from dflash_mlx.train.run.run_folder import RunFolder
from dflash_mlx.train.run.stored import STATE_FORMAT, RunState
from tests.train.test_result import step_line


@pytest.fixture
def folder(tmp_path):
    """A new run."""
    made = RunFolder(tmp_path / "out.run")
    made.create(force=False)
    made.update_state(spent_s=3.0)
    return made


def test_state_is_merged(folder):
    """Each stage of a run adds to the state and must not remove values of others."""
    assert folder.update_state(n_samples=5).spent_s == 3.0
    assert RunFolder(folder.path).state() == RunState(STATE_FORMAT, n_samples=5, spent_s=3.0)


def test_an_existing_run_is_not_overwritten(folder):
    """A command repeated by mistake must not delete a night's work."""
    folder.update_state(n_samples=100)
    with pytest.raises(BadRequest, match="continue it with --resume, or overwrite it with --force"):
        folder.create(force=False)
    folder.log(step_line(1))
    folder.data.mkdir()
    folder.create(force=True)
    with pytest.raises(BadRequest, match="contains no run"):
        folder.state()
    assert folder.history() == []
    assert not folder.data.exists()


def test_a_run_without_a_plan_is_overwritten(folder):
    """A command that failed early must not block the corrected one."""
    folder.create(force=False)
    with pytest.raises(BadRequest, match="contains no run"):
        folder.state()


def test_a_folder_with_other_files_is_refused(tmp_path):
    """--force may delete a run, not other files."""
    (tmp_path / "out.run").mkdir()
    (tmp_path / "out.run/thesis.txt").write_text("")
    with pytest.raises(BadRequest, match="contains files of something else"):
        RunFolder(tmp_path / "out.run").create(force=True)


def test_a_second_process_is_refused(folder):
    """Two processes would overwrite each other's checkpoints."""
    with folder:
        with pytest.raises(BadRequest, match="another process is training"), RunFolder(folder.path):
            pass
        with pytest.raises(BadRequest, match="another process is training"):
            RunFolder(folder.path).create(force=True)
    with RunFolder(folder.path):
        pass


def test_history_is_rewound_to_a_checkpoint(folder):
    """Steps that are repeated would appear twice in the curves."""
    for step in range(1, 6):
        folder.log(step_line(step))
    folder.rewind(3)
    folder.log(step_line(4))
    assert [line["step"] for line in folder.history()] == [1, 2, 3, 4]


def test_an_incomplete_history_line_is_ignored(folder):
    """A crash can cut the last line short, and the run has to stay readable."""
    folder.log(step_line(1))
    with (folder.path / "history.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert folder.history() == [step_line(1)]


def test_the_best_weights_are_restored(folder):
    """The result of a run is its best state, not its last."""
    assert folder.best() is None
    folder.save_best({"fc.weight": mx.ones((2, 2))}, 7, 1.25)
    best = folder.best()
    assert mx.array_equal(best.arrays["fc.weight"], mx.ones((2, 2)))
    assert best.tokens_per_round == 1.25


DAMAGED_STATES = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b"[" * 200_000,
    b"\xff\xfe",
    b'{"format": 99}',
    b'{"format": 2, "n_samples": 0}',
    b'{"format": 2, "n_samples": "12"}',
    b'{"format": 2, "spent_s": NaN}',
    b'{"format": 2, "spent_s": -1}',
    b'{"format": 2, "cache_bytes": 1.5}',
    b'{"format": 2, "unknown": 1}',
    b'{"format": 2, "recipe": {"steps": 3}}',
    b'{"format": 2, "n_samples": 9, "recipe": {"steps": "x"}}',
    b'{"format": 2, "n_samples": 9, "recipe": {}}',
    b'{"format": 2, "evaluations": {"times": 0, "per_kind": 1}}',
    b'{"format": 2, "config": {"target": "x"}}',
    b'{"format": 2, "config": {"target": 5, "out": "x"}}',
    b'{"format": 2, "config": {"target": "x", "out": "y", "overrides": {"layers": "x"}}}',
    b'{"format": 2, "config": {"target": "x", "out": "y", "seed": -1}}',
]


@pytest.mark.parametrize("content", DAMAGED_STATES)
def test_a_damaged_state_is_refused_and_force_overwrites_it(folder, content):
    """Wrong types ended in tracebacks, and wrong values were used."""
    (folder.path / "run.json").write_bytes(content)
    with pytest.raises(DFlashError) as refused:
        folder.state()
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 700
    with pytest.raises(BadRequest, match="overwrite it with --force"):
        folder.create(force=False)
    folder.create(force=True)
    assert folder.update_state(n_samples=2).n_samples == 2


def test_a_run_folder_without_its_state_is_overwritten_with_force(folder):
    """A lost run.json blocked the folder, also with --force."""
    folder.log(step_line(1))
    (folder.path / "run.json").unlink()
    with pytest.raises(BadRequest, match="overwrite it with --force"):
        folder.create(force=False)
    folder.create(force=True)
    assert folder.history() == []


def test_force_keeps_files_that_no_run_writes(folder):
    """--force deleted everything in the folder."""
    (folder.path / "notes.txt").write_text("mine")
    folder.create(force=True)
    assert (folder.path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b"5",
        b'{"step": "1"}',
        b'{"step": 2, "tokens": 1, "loss": "x"}',
        b'{"step": 2, "tokens": 1, "decoding": 5, "anchors": {}}',
    ],
)
def test_damaged_history_lines_are_ignored(folder, line, caplog):
    """They ended in tracebacks, or cut off the history before the valid lines after them."""
    folder.log(step_line(1))
    with (folder.path / "history.jsonl").open("ab") as file:
        file.write(line + b"\n" + line + b"\n")
    folder.log(step_line(2))
    assert folder.history() == [step_line(1), step_line(2)]
    assert "2 damaged lines are ignored" in caplog.text


@pytest.mark.parametrize("content", [b"", b"no tensors", b"\x10" + bytes(40)])
def test_damaged_best_weights_are_refused(folder, content):
    """The RuntimeError of the reader ended a run after its last step."""
    folder.best_file.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"best\.safetensors.*delete it, and --resume"):
        folder.best()


def test_a_lock_that_cannot_be_opened_is_refused(folder):
    """A folder in its place ended in a traceback."""
    (folder.path / ".lock").unlink(missing_ok=True)
    (folder.path / ".lock").mkdir()
    with pytest.raises(BadRequest, match=r"\.lock cannot be opened .*delete it"), folder:
        pass
