"""The folder of a run: state, history, best weights and lock."""

import mlx.core as mx
import pytest

from dflash_mlx.errors import BadCheckpoint, BadRequest
from dflash_mlx.train.run.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    """A new run."""
    made = RunFolder(tmp_path / "out.run")
    made.create(force=False)
    made.update_state(seed=3)
    return made


def test_state_is_merged(folder):
    """Each stage of a run adds to the state and must not remove values of others."""
    assert folder.update_state(steps=5) == {"format": 2, "seed": 3, "steps": 5}
    assert RunFolder(folder.path).state()["seed"] == 3


def test_an_existing_run_is_not_overwritten(folder):
    """A command repeated by mistake must not delete a night's work."""
    folder.update_state(n_samples=100)
    with pytest.raises(BadRequest, match="continue it with --resume, or overwrite it with --force"):
        folder.create(force=False)
    folder.log({"step": 1, "loss": 1.0})
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
        folder.log({"step": step})
    folder.rewind(3)
    folder.log({"step": 4, "again": True})
    assert [line["step"] for line in folder.history()] == [1, 2, 3, 4]


def test_an_incomplete_history_line_is_ignored(folder):
    """A crash can cut the last line short, and the run has to stay readable."""
    folder.log({"step": 1})
    with (folder.path / "history.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert folder.history() == [{"step": 1}]


def test_the_best_weights_are_restored(folder):
    """The result of a run is its best state, not its last."""
    assert folder.best_weights() is None
    folder.save_best({"fc.weight": mx.ones((2, 2))}, 7)
    assert mx.array_equal(folder.best_weights()["fc.weight"], mx.ones((2, 2)))


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', "{}"])
def test_a_damaged_state_is_refused(folder, text):
    """The rest of the folder cannot be interpreted without it."""
    (folder.path / "run.json").write_text(text)
    with pytest.raises(BadCheckpoint):
        folder.state()
