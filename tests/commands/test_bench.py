"""`bench` and `simulate` on the command line: refusals, reports for people and for machines."""

import json

import pytest

from dflash_mlx.bench.arms import DFlashArm
from dflash_mlx.commands import main

QUICK = ["--max-tokens", "6", "--repeats", "1", "--kind", "chat", "--prompts", "1"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--max-tokens", "0"], "--max-tokens"),
        (["--repeats", "0"], "repeats"),
        (["--block-sizes", "2,x"], "--block-sizes"),
        (["--prompts", "0"], "no prompts"),
        (["--prompts", "-1"], "--prompts"),
        (["--kind", "poetry"], "poetry"),
        (["--data", "nothing-here"], "nothing-here"),
        (["--compare", "nothing.json"], "nothing.json"),
        (["--html", "no/such/folder/page.html"], "--html"),
        (["--draft", "none"], "--draft"),
        (["--model", "smolm2-135m"], "did you mean smollm2-135m"),
        (["--cool-down", "nan"], "--cool-down"),
        (["--block-sizes", "0"], "--block-sizes"),
        (["--cool-down", "-1"], "--cool-down"),
        (["--json", "--compare", "nothing.json"], "--compare"),
    ],
)
def test_impossible_requests_are_refused_before_anything_is_loaded(loads, capsys, arguments, word):
    """Ten minutes of loading, and then a traceback."""
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert word in printed.err and printed.err.count("\n") == 1
    assert printed.out == "" and loads == []


def test_bench_prints_a_report_with_a_verdict(loads, capsys):
    """A table without a verdict leaves the question where it was."""
    assert main(["bench", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "equal to plain decoding's for 1 of 1" in printed
    assert "verdict:" in printed


def test_bench_writes_json_page_and_comparison(loads, capsys, tmp_path):
    """What cannot be kept cannot be compared."""
    page = tmp_path / "page.html"
    assert main(["bench", *QUICK, "--block-sizes", "2", "--json", "--html", str(page)]) == 0
    values = json.loads(capsys.readouterr().out)
    assert {figure["arm"] for figure in values["figures"]} == {"plain", "auto", "block 2"}
    assert page.read_text().startswith("<!doctype html>")
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(values))
    assert main(["bench", *QUICK, "--compare", str(earlier)]) == 0
    assert "before" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        "[1]",
        '{"created_at": "", "machine": {}, "pair": {}, "figures": []}',
        '{"created_at": "", "machine": {"mlx": "", "chip": "", "device": "", "blas": ""}, '
        '"pair": {"model": ""}, "figures": [{"arm": "plain", "kind": "all", "throughput": 3}]}',
    ],
)
def test_bench_refuses_a_comparison_with_something_else(loads, capsys, tmp_path, text):
    """A settings file given by mistake is a user's error, told before an hour of measuring."""
    other = tmp_path / "other.json"
    other.write_text(text)
    assert main(["bench", *QUICK, "--compare", str(other)]) == 2
    assert "--compare needs the output" in capsys.readouterr().err and loads == []


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (RuntimeError("no memory"), 1, "(no memory)")],
)
def test_a_part_of_a_run_is_printed_and_does_not_pass_for_one(
    loads, capsys, monkeypatch, error, code, said
):
    """A script published what Ctrl-C had left of a benchmark."""
    answers, seen = DFlashArm.answer, []

    def answer(arm, *given):
        seen.append(arm)
        if len(seen) > 1:
            raise error
        return answers(arm, *given)

    monkeypatch.setattr(DFlashArm, "answer", answer)
    assert main(["bench", *QUICK, "--repeats", "9"]) == code
    printed = capsys.readouterr()
    assert f"{said}: the run is incomplete" in printed.out and "verdict:" in printed.out


def test_bench_prints_its_figures_though_the_page_cannot_be_written(loads, capsys):
    """A full disk took an hour's figures with it."""
    assert main(["bench", *QUICK, "--html", "/dev/full"]) == 1
    printed = capsys.readouterr()
    assert "verdict:" in printed.out and "/dev/full cannot be written" in printed.err


def test_simulate_tells_whether_the_goals_are_reached(capsys):
    """A table that nobody judges is decoration."""
    assert main(["simulate", "--scenario", "m4-pro-8bit-mixed"]) == 0
    assert "goal 0.97, missed by 0" in capsys.readouterr().out
    assert main(["simulate", "--scenario", "nothing"]) == 2
    assert "m4-pro-8bit-mixed" in capsys.readouterr().err
