"""The command line in a terminal of its own: editing, history, Ctrl-C at every stage."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 180


class Session:
    """A process whose three streams are one terminal (or whose stdout is a pipe)."""

    def __init__(self, home, *arguments, stdout=None):
        self.ours, theirs = pty.openpty()
        kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands.scripted_cli", *arguments],
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            cwd=ROOT,
            env={**kept, "HOME": str(home), "XDG_STATE_HOME": str(home), "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: _take(theirs),
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text):
        os.write(self.ours, text.encode())

    def interrupt_line(self, text):
        """Type Ctrl-C while a line is edited, until `text` is shown.

        CPython's line editor looks for signals where it waits for a key, so one that comes while
        a key is being shown, as no person's does, is not noticed before the next signal.
        """
        for _ in range(3):
            self.type("\x03")
            with suppress(AssertionError):
                self.wait_for(text, _PATIENCE_S / 6)
                return
        raise AssertionError(f"no {text!r} after Ctrl-C in {self.seen!r}")

    def wait_for(self, text, patience_s=_PATIENCE_S):
        """Read until `text` was shown behind what was last waited for; return what was shown."""
        end = time.monotonic() + patience_s
        while (at := self.seen.find(text)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.ours], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.ours, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"ended without {text!r}: {self.seen!r}") from None
        shown, self.seen = self.seen[: at + len(text)], self.seen[at + len(text) :]
        return shown

    def end(self):
        """Return the exit code and the rest of what was shown."""
        code = self.process.wait(_PATIENCE_S)
        while select.select([self.ours], [], [], 0.2)[0]:
            try:
                more = os.read(self.ours, 65536)
            except OSError:
                break
            self.seen += more.decode(errors="replace")
        return code, self.seen

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)


def _take(terminal):
    """Make `terminal` the one that sends Ctrl-C to this process, which takes it.

    Shells start what runs in the background with Ctrl-C ignored, and this suite may.
    """
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.fixture
def start(tmp_path):
    """Starts sessions that are ended whatever happens."""
    sessions = []

    def make(*arguments, **options):
        sessions.append(Session(tmp_path, *arguments, **options))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


def bare(text):
    """What was shown without escapes for style and cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_conversation(start, tmp_path):
    """Ctrl-C stops an answer and not the app; twice at the prompt leaves; history is kept."""
    chat = start("chat", "--model", "slow-write", "--max-tokens", "400")
    chat.wait_for("/help lists what can be typed")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("3 4 5 ")
    chat.type("\x03")
    assert "| stopped" in chat.wait_for("stopped")
    chat.wait_for("> ")
    chat.type("/sta\t\n")  # completed
    assert "1 answer" in chat.wait_for("draft tokens accepted")
    chat.wait_for("> ")
    chat.type("\x1b[A\x1b[A")  # two lines up is what was asked first
    chat.wait_for("Hello")
    chat.interrupt_line("Ctrl-C again, or Ctrl-D, leaves")
    chat.wait_for("> ")
    time.sleep(0.5)  # the editor has shown its prompt and waits
    chat.type("\x03")
    code, rest = chat.end()
    assert code == 130
    assert "Traceback" not in rest
    history = tmp_path / "dflash-mlx" / "history"
    assert history.read_text().splitlines() == ["Hello", "/stats"]
    assert history.stat().st_mode & 0o777 == 0o600


def test_the_end_of_input_leaves(start):
    """Ctrl-D is how shells are left."""
    chat = start("chat", "--max-tokens", "4")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.end()[0] == 0


def test_a_line_goes_on_behind_a_backslash_and_errors_do_not_end_the_chat(start):
    """A typing error must not cost the conversation."""
    chat = start("chat", "--max-tokens", "4")
    chat.wait_for("> ")
    chat.type("/nonsense\n")
    chat.wait_for("/nonsense is no command here")
    chat.wait_for("> ")
    chat.type("a\\\n")
    chat.wait_for(". ")
    chat.type("b\n")
    chat.wait_for("prompt 3 new")
    chat.wait_for("> ")
    chat.type("/quit\n")
    assert chat.end()[0] == 0


def test_with_stdout_in_a_pipe_the_prompt_sign_stays_on_the_screen(start):
    """`dflash-mlx chat | tee log` logs answers, not prompt signs or escapes."""
    theirs, ours = os.pipe()
    chat = start("chat", "--max-tokens", "4", stdout=ours)
    os.close(ours)
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("tok/round")
    chat.type("\x04")
    assert chat.end()[0] == 0
    with os.fdopen(theirs, "rb") as pipe:
        out = pipe.read()
    assert out == b"0 1 2 3 \n"


@pytest.mark.parametrize("command", [("chat",), ("generate", "Hello")])
def test_ctrl_c_while_loading_leaves_at_once(start, command):
    """Loading cannot be interrupted, and nobody waits a minute to get a shell back."""
    session = start(*command, "--model", "slow-load")
    session.wait_for("loading slow-load")
    time.sleep(0.3)
    session.type("\x03")
    code, rest = session.end()
    assert code == 130
    assert "Traceback" not in rest


def test_ctrl_c_while_reading_the_prompt_leaves_at_once(start):
    """A long prompt is minutes of work that nobody wants any more."""
    session = start("generate", "Hello", "--model", "slow-read")
    session.wait_for("reading the prompt")
    session.type("\x03")
    code, rest = session.end()
    assert code == 130
    assert "Traceback" not in rest


def test_a_second_ctrl_c_leaves_a_chat_that_is_still_reading(start):
    """The first press asks nicely; somebody who presses again means it."""
    chat = start("chat", "--model", "slow-read")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("reading the prompt")
    chat.type("\x03")
    chat.wait_for("again leaves at once")
    chat.type("\x03")
    assert chat.end()[0] == 130


def piped(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.commands.scripted_cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        **options,
    )


def test_an_interrupted_answer_is_still_one_object():
    """What was computed is not lost, and says that it is not whole."""
    import json

    process = piped("generate", "Hello", "--json", "--model", "slow-write", "--max-tokens", "900")
    for line in process.stderr:
        if b"greedy" in line:
            break
    time.sleep(1)  # into the answer: the first word goes to nobody
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err
    found = json.loads(out)
    assert found["finish_reason"] == "cancelled"
    assert 0 < found["generated_tokens"] < 900


def test_a_reader_that_leaves_is_no_error():
    """`generate ... | head -c 5` must not print a stack."""
    process = piped("generate", "Hello", "--model", "slow-write", "--max-tokens", "900")
    assert process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(_PATIENCE_S) == 141
    process.stderr.close()
    assert b"Traceback" not in err and b"Exception" not in err
