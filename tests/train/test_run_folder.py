"""What a run keeps, and who may touch it."""

import mlx.core as mx
import pytest

from dflash_mlx.errors import BadCheckpoint, BadRequest
from dflash_mlx.train.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    """A run that has begun."""
    made = RunFolder(tmp_path / "out.run")
    made.begin(force=False)
    made.know(seed=3)
    return made


def test_facts_add_up(folder):
    """Each part of a run writes down what it decided and must not lose the others'."""
    assert folder.know(steps=5) == {"format": 1, "seed": 3, "steps": 5}
    assert RunFolder(folder.path).facts()["seed"] == 3


def test_a_run_is_not_begun_over_another(folder):
    """A command repeated by mistake must not delete a night's work."""
    folder.know(n_samples=100)
    with pytest.raises(BadRequest, match="go on with --resume, or begin anew with --force"):
        folder.begin(force=False)
    folder.log({"step": 1, "loss": 1.0})
    folder.data.mkdir()
    folder.begin(force=True)
    with pytest.raises(BadRequest, match="holds no run"):
        folder.facts()
    assert folder.history() == []
    assert not folder.data.exists()


def test_a_run_without_a_plan_gives_way(folder):
    """A command that was refused at the start must not stand in the way of the mended one."""
    folder.begin(force=False)
    with pytest.raises(BadRequest, match="holds no run"):
        folder.facts()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    """--force gives up a run, not a thesis."""
    (tmp_path / "out.run").mkdir()
    (tmp_path / "out.run/thesis.txt").write_text("")
    with pytest.raises(BadRequest, match="holds something else"):
        RunFolder(tmp_path / "out.run").begin(force=True)


def test_two_processes_do_not_train_in_one_folder(folder):
    """They would overwrite each other's checkpoints."""
    with folder:
        with pytest.raises(BadRequest, match="another process is training"), RunFolder(folder.path):
            pass
        with pytest.raises(BadRequest, match="another process is training"):
            RunFolder(folder.path).begin(force=True)
    with RunFolder(folder.path):
        pass


def test_history_is_rewound_to_a_checkpoint(folder):
    """Steps that are taken again must not be in the curves twice."""
    for step in range(1, 6):
        folder.log({"step": step})
    folder.rewind(3)
    folder.log({"step": 4, "again": True})
    assert [line["step"] for line in folder.history()] == [1, 2, 3, 4]


def test_a_line_cut_short_by_a_crash_is_left_out(folder):
    """One torn line must not make a run unreadable."""
    folder.log({"step": 1})
    with (folder.path / "history.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert folder.history() == [{"step": 1}]


def test_the_best_weights_come_back(folder):
    """The result of a run is not its last state but its best."""
    assert folder.best_weights() is None
    folder.save_best({"fc.weight": mx.ones((2, 2))}, 7)
    assert mx.array_equal(folder.best_weights()["fc.weight"], mx.ones((2, 2)))


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', "{}"])
def test_a_damaged_description_is_refused(folder, text):
    """Its options decide what the rest of the folder means."""
    (folder.path / "run.json").write_text(text)
    with pytest.raises(BadCheckpoint):
        folder.facts()
