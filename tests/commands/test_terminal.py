"""Terminal output: which stream receives what, and how text is changed for a screen."""

import io
import os
import pty
import sys

import pytest

from dflash_mlx.commands.terminal import Terminal


class Screen(io.StringIO):
    """A stream whose `isatty` is True."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Return a function that makes a `Terminal` with two screens."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def make():
        monkeypatch.setattr(sys, "stdout", Screen())
        monkeypatch.setattr(sys, "stderr", Screen())
        return Terminal()

    return make


def test_a_pipe_gets_the_exact_text(capsys):
    """Redirected output must hold the model's exact text, escape sequences included."""
    Terminal().write("a\x1b[31mb\x07", dim=True)
    assert capsys.readouterr().out == "a\x1b[31mb\x07"


def test_a_screen_shows_control_characters_as_pictures(screen):
    """Control characters in an answer could clear the screen or set the clipboard."""
    screen().write("a\x1b]52;c;evil\x07\x9b2J\r\n\tb")
    assert sys.stdout.getvalue() == "a␛]52;c;evil␇�2J␍\n\tb"


def test_reasoning_is_dimmed(screen):
    """Reasoning in the same style looked like the answer."""
    screen().write("hm", dim=True)
    assert sys.stdout.getvalue() == "\x1b[2mhm\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_color_and_dumb_terminals_disable_styles(screen, monkeypatch, name, value):
    """NO_COLOR must disable styles; see no-color.org."""
    monkeypatch.setenv(name, value)
    terminal = screen()
    terminal.write("hm", dim=True)
    terminal.log("note", dim=True)
    assert "\x1b" not in sys.stdout.getvalue() + sys.stderr.getvalue()


def test_a_log_line_starts_on_a_new_line(screen):
    """Statistics were appended to the last line of an answer."""
    terminal = screen()
    terminal.write("text")
    terminal.log("note")
    assert sys.stdout.getvalue() == "text\n"


def test_a_status_line_is_erased(screen):
    """The rest of a status line looked like part of the answer."""
    terminal = screen()
    terminal.show_status("reading")
    terminal.write("text")
    output = sys.stderr.getvalue()
    assert output.startswith("\r\x1b[K") and "reading" in output and output.endswith("\r\x1b[K")


def test_a_status_line_does_not_break_the_text(screen):
    """A status line during an answer overwrote part of it."""
    terminal = screen()
    terminal.write("text")
    terminal.show_status("reading")
    assert sys.stderr.getvalue() == ""


def test_no_status_line_in_a_log(capsys):
    """Status lines filled logs with carriage returns."""
    terminal = Terminal()
    terminal.show_status("reading")
    terminal.clear_status()
    assert capsys.readouterr().err == ""


def test_characters_missing_in_the_encoding_are_replaced(monkeypatch):
    """An umlaut in an ASCII locale ended in a traceback."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    Terminal().write("für")
    assert out.buffer.getvalue() == b"f?r"


def test_bars_are_ascii_in_an_ascii_locale(monkeypatch):
    """Block characters became question marks."""
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert Terminal().bar(0.5, 4) == "##.."


def test_the_width_is_that_of_the_screen(monkeypatch):
    """A status line wider than the screen wraps and cannot be erased."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as screen, os.fdopen(ours):
        os.system(f"stty cols 40 < {os.ttyname(theirs)}")
        monkeypatch.setattr(sys, "stderr", screen)
        assert Terminal().width == 40
