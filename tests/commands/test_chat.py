"""`dflash-mlx chat`: a conversation by lines from a pipe."""

import io
import json
import re
import sys

import pytest

from dflash_mlx.commands import main
from dflash_mlx.config import GenerationConfig

SHORT = ("--max-tokens", "12")
CONFIG = GenerationConfig(max_tokens=12)


@pytest.fixture
def chat(loads, capsys, monkeypatch):
    """Return a function that sends lines to chat; it returns exit code, stdout and stderr."""

    def run(*lines, options=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["chat", *SHORT, *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_pipe_gets_answers_and_nothing_else(chat, shared_engine):
    """`echo question | dflash-mlx chat | tool` must pipe only answers."""
    code, out, _ = chat("Hello", "Go on")
    session = shared_engine.session()
    expected = [session.generate(text, CONFIG).text for text in ("Hello", "Go on")]
    assert code == 0
    assert out == "".join(f"{text}\n" for text in expected)


def test_the_second_turn_reuses_the_cache(chat):
    """Prefill of the whole history at each turn took a minute per turn."""
    err = chat("Hello", "Go on")[2]
    counts = re.findall(r"^prompt (\d+) new \+ (\d+) cached", err, re.MULTILINE)
    (new, cached), (_, cached_later) = ((int(n), int(m)) for n, m in counts)
    assert cached_later >= new + cached - 1  # the last token of a prompt is the anchor


def test_empty_lines_are_skipped(chat):
    """A blank line at the end of a file was answered."""
    code, out, _ = chat("", "  ")
    assert (code, out) == (0, "")


def test_reset_clears_the_conversation(chat, shared_engine):
    """After /reset earlier turns must not influence the answer."""
    out = chat("Something else", "/reset", "Hello")[1]
    assert out.splitlines()[-1] == shared_engine.generate("Hello", CONFIG).text.splitlines()[-1]


def test_system_restarts_the_conversation(chat, shared_engine):
    """A new system message applies only to a new conversation."""
    code, out, err = chat("Hi", "/system Be brief", "/system", "Hello")
    expected = shared_engine.session("Be brief").generate("Hello", CONFIG).text
    assert code == 0
    assert out.endswith(f"{expected}\n")
    assert "system: Be brief" in err


def test_the_system_message_can_be_removed(chat, shared_engine):
    """Otherwise the only way to remove it is to exit."""
    out = chat('/system ""', "Hello", options=("--system", "Be brief"))[1]
    assert out == shared_engine.generate("Hello", CONFIG).text + "\n"


def test_stats_and_help_stay_off_stdout(chat):
    """Statistics in a pipe would be taken for an answer."""
    code, out, err = chat("/help", "/stats", "Hello", "/stats")
    assert code == 0
    assert "no answers yet" in err
    assert "1 answer: 12 tokens" in err
    assert all(name in err for name in ("/reset", "/system", "/save FILE", "/model NAME", "/quit"))
    assert "/help" not in out and "accepted" not in out


def test_save_writes_the_conversation(chat, tmp_path, shared_engine):
    """/save must write all turns."""
    chat("Hello", f"/save {tmp_path}/a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    answer = shared_engine.generate("Hello", CONFIG).text
    assert saved["messages"] == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": answer},
    ]


def test_model_frees_the_old_pair_before_it_loads(chat, monkeypatch, tmp_path):
    """Two 30B models did not fit in memory at the same time."""
    events = []
    load = sys.modules["dflash_mlx.engine.load"].load

    def recorded(model, *rest, **named):
        events.append(f"load {model}")
        engine = load(model, *rest, **named)
        close = engine.close
        monkeypatch.setattr(engine, "close", lambda: (events.append(f"free {model}"), close()))
        return engine

    monkeypatch.setattr("dflash_mlx.engine.load.load", recorded)
    (tmp_path / "other").mkdir()
    code, _, err = chat("Hello", f"/model {tmp_path}/other none", "/stats")
    assert code == 0
    assert events == [
        "load smollm2-135m",
        "free smollm2-135m",
        f"load {tmp_path}/other",
        f"free {tmp_path}/other",
    ]
    assert "other, no draft: plain decoding" in err
    assert "no answers yet" in err


@pytest.mark.parametrize("name", ["nosuch", "~no-such-user/x", f"/{'x' * 300}"])
def test_a_misspelled_model_keeps_the_loaded_pair(chat, loads, name):
    """A mistyped name ended the conversation."""
    code, _, err = chat(f"/model {name}")
    assert code == 2
    assert name in err.splitlines()[-1]
    assert loads == [("smollm2-135m", "auto")]


def test_a_model_that_does_not_load_restores_the_previous_one(chat, loads, monkeypatch, tmp_path):
    """After a failed /model the chat had no model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").mkdir()
    code, out, err = chat("/model bad", "Hello")
    assert code == 0
    assert "Loading smollm2-135m again" in err
    assert loads == [("smollm2-135m", "auto"), ("bad", "auto"), ("smollm2-135m", "auto")]
    assert out


def test_a_file_that_cannot_be_saved_to_is_refused(chat):
    """`/save ~x/file` ended the program and lost the conversation."""
    code, _, err = chat("Hello", "/save ~no-such-user/x.md")
    assert code == 2
    assert "~no-such-user/x.md cannot be written" in err.splitlines()[-1]


@pytest.mark.parametrize("line", ["/nonsense", "/save", "/model", "/model a b c", "/"])
def test_an_unknown_command_is_named(chat, line):
    """A mistyped command was sent to the model as a question."""
    code, out, err = chat(line)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"dflash-mlx: {line}")


def test_quit_ends_before_the_next_line(chat):
    """Lines after /quit must not be answered."""
    assert chat("/quit", "Hello")[:2] == (0, "")


def test_a_leading_space_sends_a_line_that_starts_with_a_slash(chat, shared_engine):
    """Paths and code start with slashes."""
    out = chat(" /etc/hosts")[1]
    assert out == shared_engine.generate(" /etc/hosts", CONFIG).text + "\n"
