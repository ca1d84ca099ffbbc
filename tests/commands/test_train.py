"""`dflash-mlx train` from arguments to exit code."""

import json
import signal

import pytest

from dflash_mlx.commands import main
from dflash_mlx.commands.training_view import spelled_time
from dflash_mlx.train import measuring, planning, preparing, trial
from dflash_mlx.train.evaluate import held_out_prompts
from tests.train.tiny_folder import tiny_folder


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A tiny target on disk."""
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=4))


@pytest.fixture
def arguments(target, tmp_path, home, monkeypatch):
    """A short run's arguments; what is measured is not what is tested."""
    monkeypatch.setattr(planning, "MEASURED_TOKENS", 4)
    monkeypatch.setattr(measuring, "MEASURED_TOKENS", 4)
    monkeypatch.setattr(
        preparing, "held_out_prompts", lambda *given: held_out_prompts(*given, per_kind=1)[:2]
    )
    monkeypatch.setattr(trial, "_TRIED", 1)
    (tmp_path / "prompts.txt").write_text("\n".join(f"Say {n}" for n in range(20)))
    short = ["--steps", "3", "--samples", "8", "--layers", "1", "--block", "4", "--max-rows", "64"]
    data = ["--data", str(tmp_path / "prompts.txt")]
    return ["train", target, "-o", str(tmp_path / "draft"), *short, *data]


def test_a_run_shows_its_plan_and_its_result(arguments, tmp_path, capsys):
    """What it takes stands there before it is taken; stdout has one JSON object and no more."""
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    outcome = json.loads(shown.out)
    assert outcome["out"] == str(tmp_path / "draft")
    assert outcome["finished"] is True
    assert outcome["measured"][-1]["sequential"]["tokens_per_round"] >= 1
    for said in (
        "draft for tiny",
        "parameters",
        "memory   about",
        "disk",
        "time",
        "tokens a round",
    ):
        assert said in shown.err, said
    assert shown.err.index("recipe   3 steps of 4") < shown.err.index("done: ")


def test_a_dry_run_plans_and_keeps_nothing(arguments, tmp_path, capsys):
    """A plan that takes two minutes and leaves no trace."""
    assert main([*arguments, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["recipe"]["steps"] == 3
    assert plan["speeds"]["step_s"] > 0
    assert plan["needs"]["activations"] > 0
    assert not list(tmp_path.glob("draft*"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--minutes", "5"], "give one of them"),
        (["--layers", "0"], "--layers is 0"),
        (["--resume"], "holds no run to go on with"),
        (["--data", "nothing.jsonl"], "no file or folder here"),
        (["--init", "self", "--dflash2"], "leave out --layers"),
        (["--thinking"], "has no thinking mode"),
        (["--dry-run", "--resume"], "leave out --resume"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_two(arguments, capsys, more, words):
    """Nothing on stdout, no traceback."""
    assert main([*arguments, *more]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err.splitlines()[-1]


def test_a_run_needs_a_place(target, capsys):
    """A draft in a folder nobody named is not found again."""
    assert main(["train", target]) == 2
    assert "give one with -o" in capsys.readouterr().err


def test_a_run_is_not_begun_over_another(arguments, tmp_path, capsys):
    """The same command typed twice."""
    (tmp_path / "draft.run").mkdir()
    (tmp_path / "draft.run/run.json").write_text("{}")
    assert main(arguments) == 2
    assert "--resume" in capsys.readouterr().err


def test_a_refused_command_gives_nothing_up_and_leaves_nothing(arguments, tmp_path, capsys):
    """A slip of the pen must neither delete a night's work nor block the mended command."""
    assert main([*arguments, "--data", "nothing.jsonl"]) == 2
    assert not (tmp_path / "draft.run").exists()
    (tmp_path / "draft.run").mkdir()
    (tmp_path / "draft.run/run.json").write_text('{"format": 1, "n_samples": 8}')
    assert main(["train", "no-such-target", *arguments[2:], "--force"]) == 2
    assert "no-such-target" in capsys.readouterr().err
    assert (tmp_path / "draft.run/run.json").exists()


def test_an_interrupt_says_how_to_go_on_and_it_does(arguments, tmp_path, capsys, monkeypatch):
    """After Ctrl-C one question remains: was it all for nothing?"""
    from dflash_mlx.train.between_steps import BetweenSteps

    tell, interrupted = BetweenSteps._tell, []

    def interrupting(self, progress):
        if not interrupted:
            interrupted.append(progress)
            signal.raise_signal(signal.SIGINT)
        tell(self, progress)

    monkeypatch.setattr(BetweenSteps, "_tell", interrupting)
    assert main(arguments) == 130
    assert "--resume goes on where it stopped" in capsys.readouterr().err
    out = ["train", arguments[1], "-o", str(tmp_path / "draft")]
    assert main([*out, "--resume", "--seed", "5"]) == 2
    assert "begun with seed 0 and not 5" in capsys.readouterr().err
    assert main([*out, "--resume"]) == 0
    assert (tmp_path / "draft/model.safetensors").exists()


@pytest.mark.parametrize(
    ("seconds", "said"), [(5, "5 s"), (65, "1 min"), (3500, "58 min"), (3700, "1 h 2 min")]
)
def test_times_are_spelled_for_people(seconds, said):
    """Nobody reads 37219.4 s."""
    assert spelled_time(seconds) == said
