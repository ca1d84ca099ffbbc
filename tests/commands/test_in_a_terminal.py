"""The command line in a pseudo-terminal: editing, history, Ctrl-C at every stage."""

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
        inherited = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands.scripted_cli", *arguments],
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            cwd=ROOT,
            env={**inherited, "HOME": str(home), "XDG_STATE_HOME": str(home), "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: _take(theirs),
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text):
        os.write(self.ours, text.encode())

    def interrupt_line(self, text):
        """Press Ctrl-C at the prompt until `text` appears.

        CPython's line editor checks for signals while it waits for a key; a signal that arrives
        while it echoes a key is noticed only at the next one.
        """
        for _ in range(3):
            self.type("\x03")
            with suppress(AssertionError):
                self.wait_for(text, _PATIENCE_S / 6)
                return
        raise AssertionError(f"no {text!r} after Ctrl-C in {self.seen!r}")

    def wait_for(self, text, patience_s=_PATIENCE_S):
        """Read until `text` appears and return everything read up to it."""
        end = time.monotonic() + patience_s
        while (at := self.seen.find(text)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.ours], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.ours, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"ended without {text!r}: {self.seen!r}") from None
        output, self.seen = self.seen[: at + len(text)], self.seen[at + len(text) :]
        return output

    def end(self):
        """Return the exit code and the remaining output."""
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
    """Make `terminal` the controlling terminal and restore the default SIGINT handler.

    Shells start background jobs with SIGINT ignored, which a test run can inherit.
    """
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.fixture
def start(tmp_path):
    """Start sessions and kill them after the test."""
    sessions = []

    def make(*arguments, **options):
        sessions.append(Session(tmp_path, *arguments, **options))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


def bare(text):
    """Return `text` without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_conversation(start, tmp_path):
    """Ctrl-C stops an answer, twice at the prompt exits; history is written."""
    chat = start("chat", "--model", "slow-write", "--max-tokens", "400")
    chat.wait_for("/help lists the commands")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("3 4 5 ")
    chat.type("\x03")
    assert "| stopped" in chat.wait_for("stopped")
    chat.wait_for("> ")
    chat.type("/sta\t\n")  # completed by Tab
    assert "1 answer" in chat.wait_for("draft tokens accepted")
    chat.wait_for("> ")
    chat.type("\x1b[A\x1b[A")  # two lines up is the first question
    chat.wait_for("Hello")
    chat.interrupt_line("press Ctrl-C again, or Ctrl-D, to exit")
    chat.wait_for("> ")
    time.sleep(0.5)  # the editor is waiting for a key
    chat.type("\x03")
    code, rest = chat.end()
    assert code == 130
    assert "Traceback" not in rest
    history = tmp_path / "dflash-mlx" / "history"
    assert history.read_text().splitlines() == ["Hello", "/stats"]
    assert history.stat().st_mode & 0o777 == 0o600


def test_end_of_input_exits(start):
    """Ctrl-D must end a chat as it ends a shell."""
    chat = start("chat", "--max-tokens", "4")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.end()[0] == 0


def test_a_backslash_continues_a_line_and_errors_do_not_end_the_chat(start):
    """A mistyped command ended the conversation."""
    chat = start("chat", "--max-tokens", "4")
    chat.wait_for("> ")
    chat.type("/nonsense\n")
    chat.wait_for("/nonsense is not a command")
    chat.wait_for("> ")
    chat.type("a\\\n")
    chat.wait_for(". ")
    chat.type("b\n")
    chat.wait_for("prompt 3 new")
    chat.wait_for("> ")
    chat.type("/quit\n")
    assert chat.end()[0] == 0


def test_pasted_lines_are_one_question(start):
    """Three pasted lines of code were three questions."""
    chat = start("chat", "--max-tokens", "4")
    chat.wait_for("\x1b[?2004h> ")  # asks the terminal to mark pasted text
    chat.type("def f(x):\n    return x\nprint(f(1))\n")  # a terminal without marks
    text = "def f(x):\n    return x\nprint(f(1))"
    chat.wait_for(f"prompt {len(text)} new")
    chat.wait_for("> ")
    time.sleep(0.5)  # the editor is waiting for a key
    chat.type("\x1b[200~one\ntwo\x1b[201~")
    time.sleep(0.5)
    chat.type("\n")
    chat.wait_for("prompt 7 new")
    chat.wait_for("> ")
    time.sleep(0.5)
    chat.type("a\nb\n/help\n/quit\n")  # commands are never part of a question
    chat.wait_for("prompt 3 new")
    chat.wait_for("list the commands")
    assert chat.end()[0] == 0


def test_with_stdout_in_a_pipe_the_prompt_sign_stays_on_the_screen(start):
    """`dflash-mlx chat | tee log` must log answers without prompt signs or escapes."""
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
def test_ctrl_c_during_loading_exits(start, command):
    """Loading cannot be interrupted, so Ctrl-C waited for it to finish."""
    session = start(*command, "--model", "slow-load")
    session.wait_for("loading slow-load")
    time.sleep(0.3)
    session.type("\x03")
    code, rest = session.end()
    assert code == 130
    assert "Traceback" not in rest


def test_ctrl_c_during_prefill_exits(start):
    """Prefill of a long prompt continued for minutes after Ctrl-C."""
    session = start("generate", "Hello", "--model", "slow-read")
    session.wait_for("reading the prompt")
    session.type("\x03")
    code, rest = session.end()
    assert code == 130
    assert "Traceback" not in rest


def test_a_second_ctrl_c_exits_a_chat_during_prefill(start):
    """The first press stops after the current chunk, which can take long."""
    chat = start("chat", "--model", "slow-read")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("reading the prompt")
    chat.type("\x03")
    chat.wait_for("press Ctrl-C again to exit")
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
    """An interrupted `--json` run must print one object that is marked as cancelled."""
    import json

    process = piped("generate", "Hello", "--json", "--model", "slow-write", "--max-tokens", "900")
    for line in process.stderr:
        if b"greedy" in line:
            break
    time.sleep(1)  # the answer has begun; nothing of it is printed with --json
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err
    found = json.loads(out)
    assert found["finish_reason"] == "cancelled"
    assert 0 < found["generated_tokens"] < 900


def test_a_closed_pipe_is_not_an_error():
    """`generate ... | head -c 5` ended in a traceback."""
    process = piped("generate", "Hello", "--model", "slow-write", "--max-tokens", "900")
    assert process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(_PATIENCE_S) == 141
    process.stderr.close()
    assert b"Traceback" not in err and b"Exception" not in err
