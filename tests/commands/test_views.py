"""Text of statistics, transcripts and loading progress."""

import json
import sys
from dataclasses import replace

import pytest

from dflash_mlx.commands.chat import save_transcript
from dflash_mlx.commands.progress import LoadingProgress, PrefillProgress
from dflash_mlx.commands.stats_view import stats_line, stats_lines
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.errors import BadRequest
from tests.commands.results import RESULT, STATS
from tests.commands.test_terminal import Screen

PLAIN = replace(
    RESULT,
    stats=replace(
        STATS,
        drafted=0,
        accepted=0,
        acceptance=None,
        accepted_lengths={},
        accepted_by_position=(),
        drafted_by_position=(),
        draft_s=None,
        verify_s=None,
    ),
)


def test_the_line_has_new_and_cached_prompt_tokens():
    """A slow second turn is explained by these two numbers."""
    assert stats_line(RESULT) == (
        "prompt 50 new + 10 cached, 100.0 tok/s | answer 24, 12.0 tok/s | 2.40 tok/round | "
        "20% accepted"
    )


def test_the_line_names_plain_decoding():
    """Disabled speculation was not visible in the statistics."""
    assert stats_line(PLAIN).endswith("| plain decoding")


def test_the_line_names_the_reason_for_an_early_end():
    """An answer that ends at a limit looks complete."""
    disabled = replace(RESULT, stats=replace(STATS, disabled_at=7), finish_reason="length", seed=3)
    assert stats_line(disabled).endswith(
        "| speculation disabled at token 7 | max tokens reached | seed 3"
    )
    assert stats_line(replace(RESULT, finish_reason="cancelled")).endswith("| stopped")


def test_stats_draw_acceptance_by_position():
    """An average hides at which position a draft is wrong."""
    lines = list(stats_lines([PLAIN, RESULT], Terminal()))
    assert "   1 ██████████████░░░░░░░░░░  60%" in lines
    assert "   4 ░░░░░░░░░░░░░░░░░░░░░░░░   0%" in lines
    assert "   0 ██████████░░░░░░░░░░░░░░ 4" in lines
    assert lines[-1] == "2 answers: 48 tokens in 4.0 s, 14 of 70 draft tokens accepted"


def test_stats_without_answers_are_not_an_error():
    """`/stats` as the first line ended in an error."""
    assert list(stats_lines([], Terminal())) == ["no answers yet"]


MESSAGES = [{"role": "user", "content": "Grüße"}, {"role": "assistant", "content": "Hi"}]


def test_the_suffix_selects_json_or_markdown(tmp_path):
    """Programs read JSON and people read Markdown."""
    save_transcript(tmp_path / "a.json", MESSAGES, "tiny")
    save_transcript(tmp_path / "a.md", MESSAGES, "tiny")
    assert json.loads((tmp_path / "a.json").read_text()) == {"model": "tiny", "messages": MESSAGES}
    assert (tmp_path / "a.md").read_text() == "# tiny\n\n## user\n\nGrüße\n\n## assistant\n\nHi\n"


def test_a_transcript_overwrites_nothing(tmp_path):
    """`/save notes.md` overwrote an existing file."""
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(BadRequest, match="exists"):
        save_transcript(tmp_path / "notes.md", MESSAGES, "tiny")
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_a_transcript_that_cannot_be_written_has_a_reason(tmp_path):
    """A missing folder ended in a traceback."""
    with pytest.raises(BadRequest, match="No such file"):
        save_transcript(tmp_path / "none" / "a.md", MESSAGES, "tiny")
    with pytest.raises(BadRequest, match="empty"):
        save_transcript(tmp_path / "a.md", [], "tiny")


def test_loading_is_lines_in_a_log(capsys):
    """A log had a line per megabyte."""
    with LoadingProgress(Terminal()) as loading:
        loading.hooks.on_step("loading tiny")
        for done in range(100):
            loading.hooks.on_progress(done * 10**6, 10**8)
        loading.hooks.on_progress(10**8, 10**8)
        loading.hooks.on_notice("other weights")
    assert capsys.readouterr().err == (
        "loading tiny\n100.0 MB of 100.0 MB downloaded\nother weights\n"
    )


def test_loading_is_a_transient_bar_on_a_screen(monkeypatch):
    """A download without progress looks stalled; notices must remain after the bar is gone."""
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "xterm")
    with LoadingProgress(Terminal()) as loading:
        loading.hooks.on_step("downloading 100 MB")
        loading.hooks.on_progress(10**6, 10**8)
        loading.hooks.on_step("still downloading")
        loading.hooks.on_progress(10**8, 10**8)
        loading.hooks.on_notice("other weights")
    output = sys.stderr.getvalue()
    assert "100.0/100.0 MB" in output
    assert "still downloading" in output
    assert "downloading 100 MB\x1b[0m\n" in output  # the size remains visible
    assert output.endswith("other weights\n")
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")  # the cursor came back


def test_prefill_progress_is_logged_at_intervals(capsys, monkeypatch):
    """A log had no sign of progress, or a line per chunk."""
    now = iter(range(0, 1000, 4))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    prefill = PrefillProgress(Terminal())
    for done in range(0, 10):
        prefill.show(done * 2048, 20480)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading the prompt: 4096 of 20480 tokens"
    assert 1 < len(lines) < 5


def test_loading_survives_a_download_that_fails(monkeypatch):
    """The bar was drawn over the error message."""
    monkeypatch.setattr(sys, "stderr", Screen())
    with pytest.raises(BadRequest), LoadingProgress(Terminal()) as loading:
        loading.hooks.on_progress(1, 100)
        raise BadRequest("gone")
    assert "\x1b[?25h" in sys.stderr.getvalue()
