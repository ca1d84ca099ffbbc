"""Statistics, transcripts and loading, as they are told to a person."""

import json
import sys
from dataclasses import replace

import pytest

from dflash_mlx.commands.progress import Loading, Reading
from dflash_mlx.commands.stats_view import stats_line, stats_lines
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.commands.transcript import save_transcript
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


def test_the_line_says_what_was_new_and_what_was_cached():
    """ "Why is the second turn slow?" is answered by two numbers."""
    assert stats_line(RESULT) == (
        "prompt 50 new + 10 cached, 100.0 tok/s | answer 24, 12.0 tok/s | 2.40 tok/round | "
        "20% accepted"
    )


def test_the_line_says_when_nothing_was_drafted():
    """Speculation that is silently off is the most common speed report of all."""
    assert stats_line(PLAIN).endswith("| plain decoding")


def test_the_line_says_what_cut_the_answer_short():
    """An answer that ends at a limit looks finished."""
    parked = replace(RESULT, stats=replace(STATS, disabled_at=7), finish_reason="length", seed=3)
    assert stats_line(parked).endswith("| drafting stopped at token 7 | length reached | seed 3")
    assert stats_line(replace(RESULT, finish_reason="cancelled")).endswith("| stopped")


def test_stats_draw_acceptance_by_position():
    """One average hides where a draft goes wrong."""
    lines = list(stats_lines([PLAIN, RESULT], Terminal()))
    assert "   1 ██████████████░░░░░░░░░░  60%" in lines
    assert "   4 ░░░░░░░░░░░░░░░░░░░░░░░░   0%" in lines
    assert "   0 ██████████░░░░░░░░░░░░░░ 4" in lines
    assert lines[-1] == "2 answers: 48 tokens in 4.0 s, 14 of 70 draft tokens accepted"


def test_stats_of_nothing_are_no_error():
    """`/stats` is what people try first."""
    assert list(stats_lines([], Terminal())) == ["no answers yet"]


MESSAGES = [{"role": "user", "content": "Grüße"}, {"role": "assistant", "content": "Hi"}]


def test_a_transcript_is_json_or_markdown_by_its_name(tmp_path):
    """Programs and people want different files."""
    save_transcript(tmp_path / "a.json", MESSAGES, "tiny")
    save_transcript(tmp_path / "a.md", MESSAGES, "tiny")
    assert json.loads((tmp_path / "a.json").read_text()) == {"model": "tiny", "messages": MESSAGES}
    assert (tmp_path / "a.md").read_text() == "# tiny\n\n## user\n\nGrüße\n\n## assistant\n\nHi\n"


def test_a_transcript_overwrites_nothing(tmp_path):
    """`/save notes.md` must not eat notes.md."""
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(BadRequest, match="exists"):
        save_transcript(tmp_path / "notes.md", MESSAGES, "tiny")
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_a_transcript_that_cannot_be_written_says_why(tmp_path):
    """A wrong folder is a typing error."""
    with pytest.raises(BadRequest, match="No such file"):
        save_transcript(tmp_path / "none" / "a.md", MESSAGES, "tiny")
    with pytest.raises(BadRequest, match="empty"):
        save_transcript(tmp_path / "a.md", [], "tiny")


def test_loading_is_plain_lines_where_nobody_watches(capsys):
    """A log wants one line per step, and not one per megabyte."""
    with Loading(Terminal()) as loading:
        loading.hooks.on_step("loading tiny")
        for done in range(100):
            loading.hooks.on_progress(done * 10**6, 10**8)
        loading.hooks.on_progress(10**8, 10**8)
        loading.hooks.on_notice("other weights")
    assert capsys.readouterr().err == (
        "loading tiny\n100.0 MB of 100.0 MB downloaded\nother weights\n"
    )


def test_loading_is_a_bar_on_a_screen_and_gone_afterwards(monkeypatch):
    """Ten gigabytes without a sign of life get interrupted; notices must outlive the bar."""
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "xterm")
    with Loading(Terminal()) as loading:
        loading.hooks.on_step("downloading 100 MB")
        loading.hooks.on_progress(10**6, 10**8)
        loading.hooks.on_step("still downloading")
        loading.hooks.on_progress(10**8, 10**8)
        loading.hooks.on_notice("other weights")
    shown = sys.stderr.getvalue()
    assert "100.0/100.0 MB" in shown
    assert "still downloading" in shown
    assert "downloading 100 MB\x1b[0m\n" in shown  # how much stays to be read
    assert shown.endswith("other weights\n")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor came back


def test_reading_a_long_prompt_is_told_now_and_then(capsys, monkeypatch):
    """A log should show that it goes on, without a line for each chunk."""
    now = iter(range(0, 1000, 4))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    reading = Reading(Terminal())
    for done in range(0, 10):
        reading.show(done * 2048, 20480)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading the prompt: 4096 of 20480 tokens"
    assert 1 < len(lines) < 5


def test_loading_survives_a_download_that_fails(monkeypatch):
    """An error behind a bar that still draws is unreadable."""
    monkeypatch.setattr(sys, "stderr", Screen())
    with pytest.raises(BadRequest), Loading(Terminal()) as loading:
        loading.hooks.on_progress(1, 100)
        raise BadRequest("gone")
    assert "\x1b[?25h" in sys.stderr.getvalue()
