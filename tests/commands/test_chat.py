"""`dflash-mlx chat`: a conversation by lines, whether a person or a pipe brings them."""

import io
import json
import sys

import pytest

from dflash_mlx.commands import main
from dflash_mlx.config import GenerationConfig

SHORT = ("--max-tokens", "12")
CONFIG = GenerationConfig(max_tokens=12)


@pytest.fixture
def talk(loads, capsys, monkeypatch):
    """Send lines to chat through a pipe; return code, stdout and stderr."""

    def run(*lines, options=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["chat", *SHORT, *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_pipe_gets_answers_and_nothing_else(talk, shared_engine):
    """`echo question | dflash-mlx chat | tool` must not feed a prompt sign to the tool."""
    code, out, _ = talk("Hello", "Go on")
    session = shared_engine.session()
    expected = [session.generate(text, CONFIG).text for text in ("Hello", "Go on")]
    assert code == 0
    assert out == "".join(f"{text}\n" for text in expected)


def test_the_second_turn_reuses_rows(talk):
    """A chat that reads its history again at each turn takes a minute per turn, or forgets."""
    err = talk("Hello", "Go on")[2]
    first, second = (line for line in err.splitlines() if line.startswith("prompt "))
    assert "+ 0 cached" in first
    assert "+ 0 cached" not in second


def test_empty_lines_are_no_questions(talk):
    """A blank line at the end of a file would be answered."""
    code, out, _ = talk("", "  ")
    assert (code, out) == (0, "")


def test_reset_forgets(talk, shared_engine):
    """After /reset nothing said before may colour the answer."""
    out = talk("Something else", "/reset", "Hello")[1]
    assert out.splitlines()[-1] == shared_engine.generate("Hello", CONFIG).text.splitlines()[-1]


def test_system_begins_anew(talk, shared_engine):
    """A system message behind a conversation is another conversation."""
    code, out, err = talk("Hi", "/system Be brief", "/system", "Hello")
    expected = shared_engine.session("Be brief").generate("Hello", CONFIG).text
    assert code == 0
    assert out.endswith(f"{expected}\n")
    assert "system: Be brief" in err


def test_system_can_be_taken_away(talk, shared_engine):
    """Without it the only way back is to leave."""
    out = talk('/system ""', "Hello", options=("--system", "Be brief"))[1]
    assert out == shared_engine.generate("Hello", CONFIG).text + "\n"


def test_stats_and_help_stay_off_stdout(talk):
    """They are about the answers, not answers."""
    code, out, err = talk("/help", "/stats", "Hello", "/stats")
    assert code == 0
    assert "no answers yet" in err
    assert "1 answer: 12 tokens" in err
    assert all(name in err for name in ("/reset", "/system", "/save FILE", "/model NAME", "/quit"))
    assert "/help" not in out and "accepted" not in out


def test_save_writes_what_was_said(talk, tmp_path, shared_engine):
    """A conversation worth keeping should not be copied from the screen."""
    talk("Hello", f"/save {tmp_path}/a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    answer = shared_engine.generate("Hello", CONFIG).text
    assert saved["messages"] == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": answer},
    ]


def test_model_frees_the_old_pair_before_it_loads(talk, monkeypatch, tmp_path):
    """Two 30B models at once do not fit."""
    events = []
    load = sys.modules["dflash_mlx.engine.load"].load

    def noted(model, *rest, **named):
        events.append(f"load {model}")
        engine = load(model, *rest, **named)
        close = engine.close
        monkeypatch.setattr(engine, "close", lambda: (events.append(f"free {model}"), close()))
        return engine

    monkeypatch.setattr("dflash_mlx.engine.load.load", noted)
    (tmp_path / "other").mkdir()
    code, _, err = talk("Hello", f"/model {tmp_path}/other none", "/stats")
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
def test_a_misspelled_model_frees_nothing(talk, loads, name):
    """A typing error must not cost the conversation, wherever the slip is."""
    code, _, err = talk(f"/model {name}")
    assert code == 2
    assert name in err.splitlines()[-1]
    assert loads == [("smollm2-135m", "auto")]


def test_a_model_that_does_not_load_gives_the_old_one_back(talk, loads, monkeypatch, tmp_path):
    """Chat without a model is useless; the old one was just there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").mkdir()
    code, out, err = talk("/model bad", "Hello")
    assert code == 0
    assert "Loading smollm2-135m again" in err
    assert loads == [("smollm2-135m", "auto"), ("bad", "auto"), ("smollm2-135m", "auto")]
    assert out


def test_a_file_that_cannot_be_saved_to_is_refused(talk):
    """A slash forgotten behind ~ ended the program, and the conversation with it."""
    code, _, err = talk("Hello", "/save ~no-such-user/x.md")
    assert code == 2
    assert "~no-such-user/x.md cannot be written" in err.splitlines()[-1]


@pytest.mark.parametrize("line", ["/nonsense", "/save", "/model", "/model a b c", "/"])
def test_an_unknown_command_is_named(talk, line):
    """Sent to the model as text it would be answered, and nobody would know."""
    code, out, err = talk(line)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"dflash-mlx: {line}")


def test_quit_ends_before_the_next_line(talk):
    """/quit in a script means it."""
    assert talk("/quit", "Hello")[:2] == (0, "")


def test_a_space_in_front_sends_a_slash(talk, shared_engine):
    """Paths and code begin with slashes too."""
    out = talk(" /etc/hosts")[1]
    assert out == shared_engine.generate(" /etc/hosts", CONFIG).text + "\n"
