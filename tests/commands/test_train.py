"""`dflash-mlx train`: arguments, output and exit codes."""

import json
import signal

import pytest

from dflash_mlx.commands import main
from dflash_mlx.commands.training_view import spelled_time
from dflash_mlx.train.loop.evaluate import held_out_prompts
from dflash_mlx.train.run import monitor, planning, probe, setup
from tests.train.tiny_folder import tiny_folder


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """The folder of a tiny target."""
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=4))


@pytest.fixture
def arguments(target, tmp_path, home, monkeypatch):
    """Return the arguments of a short run; measurements are shortened too."""
    monkeypatch.setattr(planning, "EVALUATED_TOKENS", 4)
    monkeypatch.setattr(monitor, "EVALUATED_TOKENS", 4)
    monkeypatch.setattr(
        setup, "held_out_prompts", lambda *given: held_out_prompts(*given, per_kind=1)[:2]
    )
    monkeypatch.setattr(probe, "_MAX_REPEATS", 1)
    (tmp_path / "prompts.txt").write_text("\n".join(f"Say {n}" for n in range(20)))
    short = [
        "--steps",
        "3",
        "--samples",
        "8",
        "--layers",
        "1",
        "--block-size",
        "4",
        "--max-seq-length",
        "64",
    ]
    data = ["--data", str(tmp_path / "prompts.txt")]
    return ["train", target, "-o", str(tmp_path / "draft"), *short, *data]


def test_a_run_shows_its_plan_and_its_result(arguments, tmp_path, capsys):
    """The plan is printed before the run starts; stdout has exactly one JSON object."""
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    outcome = json.loads(captured.out)
    assert outcome["out"] == str(tmp_path / "draft")
    assert outcome["finished"] is True
    assert outcome["evaluations"][-1]["decoding"]["tokens_per_round"] >= 1
    for text in (
        "draft for tiny",
        "parameters",
        "memory   about",
        "disk",
        "time",
        "tokens per round",
    ):
        assert text in captured.err, text
    assert captured.err.index("recipe   3 steps of 4") < captured.err.index("done: ")


def test_a_dry_run_plans_and_keeps_nothing(arguments, tmp_path, capsys):
    """A dry run must write no files."""
    assert main([*arguments, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["recipe"]["steps"] == 3
    assert plan["stages"]["step_s"] > 0
    assert plan["memory"]["activations"] > 0
    assert not list(tmp_path.glob("draft*"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--minutes", "5"], "give one of them"),
        (["--layers", "0"], "--layers is 0"),
        (["--resume"], "contains no run to resume"),
        (["--data", "nothing.jsonl"], "not a local file or folder"),
        (["--init", "self", "--dflash2"], "leave out --layers"),
        (["--thinking"], "has no thinking mode"),
        (["--dry-run", "--resume"], "omit --resume"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_two(arguments, capsys, more, words):
    """A bad option ended in a traceback."""
    assert main([*arguments, *more]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]


def test_a_run_needs_an_output_folder(target, capsys):
    """Without --out the draft was written to a default folder and not found again."""
    assert main(["train", target]) == 2
    assert "set --out" in capsys.readouterr().err


def test_a_run_does_not_overwrite_another(arguments, tmp_path, capsys):
    """Entering the same command twice deleted the first run."""
    (tmp_path / "draft.run").mkdir()
    (tmp_path / "draft.run/run.json").write_text("{}")
    assert main(arguments) == 2
    assert "--resume" in capsys.readouterr().err


def test_a_refused_command_deletes_nothing_and_leaves_no_files(arguments, tmp_path, capsys):
    """A mistyped command with --force deleted the existing run."""
    assert main([*arguments, "--data", "nothing.jsonl"]) == 2
    assert not (tmp_path / "draft.run").exists()
    (tmp_path / "draft.run").mkdir()
    (tmp_path / "draft.run/run.json").write_text('{"format": 2, "n_samples": 8}')
    assert main(["train", "no-such-target", *arguments[2:], "--force"]) == 2
    assert "no-such-target" in capsys.readouterr().err
    assert (tmp_path / "draft.run/run.json").exists()


def test_an_interrupted_run_can_be_resumed(arguments, tmp_path, capsys, monkeypatch):
    """After Ctrl-C a user must learn that no work was lost."""
    from dflash_mlx.train.run.monitor import RunMonitor

    report, interrupted = RunMonitor._report, []

    def interrupting(self, step):
        if not interrupted:
            interrupted.append(step)
            signal.raise_signal(signal.SIGINT)
        report(self, step)

    monkeypatch.setattr(RunMonitor, "_report", interrupting)
    assert main(arguments) == 130
    assert "--resume continues where it stopped" in capsys.readouterr().err
    out = ["train", arguments[1], "-o", str(tmp_path / "draft")]
    assert main([*out, "--resume", "--seed", "5"]) == 2
    assert "has seed 0 and the command has 5" in capsys.readouterr().err
    assert main([*out, "--resume"]) == 0
    assert (tmp_path / "draft/model.safetensors").exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (65, "1 min"), (3500, "58 min"), (3700, "1 h 2 min")]
)
def test_durations_are_printed_in_their_largest_units(seconds, text):
    """Durations were printed as 37219.4 s."""
    assert spelled_time(seconds) == text
