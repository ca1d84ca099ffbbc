"""`bench` and `simulate`: refusals, printed reports and JSON."""

import json

import pytest

from dflash_mlx.bench.arms import DFlashArm
from dflash_mlx.commands import main

QUICK = ["--max-tokens", "6", "--repeats", "1", "--kind", "chat", "--prompts", "1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
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
def test_impossible_requests_are_refused_before_anything_is_loaded(loads, capsys, arguments, text):
    """Invalid options were found after ten minutes of loading, by a traceback."""
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert text in printed.err and printed.err.count("\n") == 1
    assert printed.out == "" and loads == []


def test_bench_prints_a_report_with_a_verdict(loads, capsys):
    """A table without a recommendation does not answer whether to use DFlash."""
    assert main(["bench", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "equal to plain decoding's for 1 of 1" in printed
    assert "verdict:" in printed


def test_bench_writes_json_page_and_comparison(loads, capsys, tmp_path):
    """Results of two runs must be comparable."""
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
    """A wrong file for --compare must be refused before an hour of measuring."""
    other = tmp_path / "other.json"
    other.write_text(text)
    assert main(["bench", *QUICK, "--compare", str(other)]) == 2
    assert "--compare needs the output" in capsys.readouterr().err and loads == []


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [(KeyboardInterrupt(), 130, "interrupted"), (RuntimeError("no memory"), 1, "(no memory)")],
)
def test_an_incomplete_run_is_printed_and_marked(loads, capsys, monkeypatch, error, code, text):
    """A script took the output of an interrupted run for a complete one."""
    answers, seen = DFlashArm.answer, []

    def answer(arm, *given):
        seen.append(arm)
        if len(seen) > 1:
            raise error
        return answers(arm, *given)

    monkeypatch.setattr(DFlashArm, "answer", answer)
    assert main(["bench", *QUICK, "--repeats", "9"]) == code
    printed = capsys.readouterr()
    assert f"{text}: the run is incomplete" in printed.out and "verdict:" in printed.out


def test_bench_prints_its_figures_if_the_page_cannot_be_written(loads, capsys):
    """A full disk lost the figures of an hour."""
    assert main(["bench", *QUICK, "--html", "/dev/full"]) == 1
    printed = capsys.readouterr()
    assert "verdict:" in printed.out and "/dev/full cannot be written" in printed.err


def test_simulate_prints_whether_the_goals_are_reached(capsys):
    """The output must state whether the goals are met, not only list figures."""
    assert main(["simulate", "--scenario", "m4-pro-8bit-mixed"]) == 0
    assert "goal 0.97, missed by 0" in capsys.readouterr().out
    assert main(["simulate", "--scenario", "nothing"]) == 2
    assert "m4-pro-8bit-mixed" in capsys.readouterr().err
