"""Where text goes and what may be done to it on the way."""

import io
import os
import pty
import sys

import pytest

from dflash_mlx.commands.terminal import Terminal


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Makes a terminal whose two ends are screens of their own."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def make():
        monkeypatch.setattr(sys, "stdout", Screen())
        monkeypatch.setattr(sys, "stderr", Screen())
        return Terminal()

    return make


def test_a_pipe_gets_the_exact_text(capsys):
    """A file made by `>` must hold what the model wrote, escapes and all."""
    Terminal().write("a\x1b[31mb\x07", dim=True)
    assert capsys.readouterr().out == "a\x1b[31mb\x07"


def test_a_screen_shows_control_characters_instead_of_obeying(screen):
    """A model that was fed a hostile page must not clear the screen or set the clipboard."""
    screen().write("a\x1b]52;c;evil\x07\x9b2J\r\n\tb")
    assert sys.stdout.getvalue() == "a␛]52;c;evil␇�2J␍\n\tb"


def test_thoughts_are_dimmed(screen):
    """A thought that looks like the answer is read as one."""
    screen().write("hm", dim=True)
    assert sys.stdout.getvalue() == "\x1b[2mhm\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_style_where_none_is_wanted(screen, monkeypatch, name, value):
    """NO_COLOR is a promise that programs make to their users; see no-color.org."""
    monkeypatch.setenv(name, value)
    terminal = screen()
    terminal.write("hm", dim=True)
    terminal.say("note", dim=True)
    assert "\x1b" not in sys.stdout.getvalue() + sys.stderr.getvalue()


def test_a_line_on_stderr_does_not_stick_to_the_text(screen):
    """Statistics in the middle of the last line of an answer are hard to read."""
    terminal = screen()
    terminal.write("text")
    terminal.say("note")
    assert sys.stdout.getvalue() == "text\n"


def test_a_passing_line_leaves_no_trace(screen):
    """Half a progress line in front of the answer looks like part of it."""
    terminal = screen()
    terminal.show("reading")
    terminal.write("text")
    shown = sys.stderr.getvalue()
    assert shown.startswith("\r\x1b[K") and "reading" in shown and shown.endswith("\r\x1b[K")


def test_a_passing_line_never_breaks_the_text(screen):
    """Progress while an answer is written would tear it apart."""
    terminal = screen()
    terminal.write("text")
    terminal.show("reading")
    assert sys.stderr.getvalue() == ""


def test_nothing_passes_where_nobody_watches(capsys):
    """A log full of carriage returns cannot be read."""
    terminal = Terminal()
    terminal.show("reading")
    terminal.erase()
    assert capsys.readouterr().err == ""


def test_letters_that_an_encoding_lacks_are_replaced(monkeypatch):
    """An answer with an umlaut in an ASCII locale must not end in a traceback."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    Terminal().write("für")
    assert out.buffer.getvalue() == b"f?r"


def test_bars_need_no_unicode(monkeypatch):
    """Blocks in an ASCII terminal are question marks of equal length."""
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert Terminal().bar(0.5, 4) == "##.."


def test_the_width_is_that_of_the_screen(monkeypatch):
    """A passing line that wraps cannot be erased."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as screen, os.fdopen(ours):
        os.system(f"stty cols 40 < {os.ttyname(theirs)}")
        monkeypatch.setattr(sys, "stderr", screen)
        assert Terminal().width == 40
