"""`dflash-mlx generate`: only the text on stdout, or one JSON object."""

import io
import json
import re
import sys

import pytest

from dflash_mlx.commands import main
from dflash_mlx.config import GenerationConfig

SHORT = ("--max-tokens", "24")


class Pipe(io.StringIO):
    """A stdin with a binary `buffer`, as a pipe has."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content.decode(errors="surrogateescape"))
        self.buffer = io.BytesIO(content)


@pytest.fixture(scope="module")
def expected(shared_engine):
    """The library's own answer to "Hello"."""
    return shared_engine.generate("Hello", GenerationConfig(max_tokens=24))


def run(capsys, *arguments):
    code = main(["generate", *arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured


def test_stdout_is_the_text_and_nothing_else(loads, capsys, expected):
    """`generate > file` contained a banner, a newline or statistics."""
    assert run(capsys, "Hello", *SHORT).out == expected.text


def test_stderr_has_the_settings_and_the_statistics(loads, capsys):
    """Reports about speed lacked the settings that explain it."""
    err = run(capsys, "Hello", *SHORT).err
    assert "smollm2-135m + tiny-draft: block size 8, greedy" in err
    assert re.search(r"prompt \d+ new \+ \d+ cached", err)
    assert "tok/round" in err and "accepted" in err


def test_json_is_one_object_with_everything(loads, capsys, expected):
    """A missing or renamed field breaks programs that read the object."""
    captured = run(capsys, "Hello", *SHORT, "--json")
    found = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    assert found["text"] == expected.text
    assert found["tokens"] == list(expected.tokens)
    assert found.keys() >= {"finish_reason", "prompt_tokens", "cached_tokens", "generated_tokens"}
    assert found.keys() >= {"model", "draft", "seed"}
    stats = {"rounds", "drafted", "accepted", "acceptance", "tokens_per_round", "path"}
    stats |= {
        "block_size",
        "accepted_lengths",
        "accepted_by_position",
        "drafted_by_position",
        "host_reads",
    }
    stats |= {"prefill_s", "decode_s", "prefill_tps", "decode_tps", "draft_s", "verify_s"}
    stats |= {"disabled_at", "reason"}
    assert found["stats"].keys() >= stats | {"peak_memory_bytes", "blas"}
    assert sum(found["stats"]["accepted_lengths"].values()) <= found["stats"]["rounds"]


def test_a_dash_reads_the_prompt_from_stdin(loads, capsys, monkeypatch, expected):
    """Long prompts exceed the limits of a command line."""
    monkeypatch.setattr(sys, "stdin", Pipe(b"Hello"))
    assert run(capsys, "-", *SHORT).out == expected.text


@pytest.mark.parametrize(("content", "named"), [(b"\xff\xfe\x00", "UTF-8"), (b" \n", "empty")])
def test_stdin_without_text_is_refused(loads, capsys, monkeypatch, content, named):
    """Binary input ended in a traceback, and empty input was answered."""
    monkeypatch.setattr(sys, "stdin", Pipe(content))
    assert main(["generate", "-"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and named in captured.err
    assert loads == []


def test_model_and_draft_are_passed_on(loads, capsys):
    """`--draft none` must disable speculation, or comparisons are wrong."""
    err = run(capsys, "Hello", "--model", "other", "--draft", "none", *SHORT).err
    assert loads == [("other", "none")]
    assert "other, no draft: plain decoding" in err
    assert "| plain decoding" in err


def test_the_text_is_the_same_at_every_block_size(loads, capsys, expected):
    """The block size must not change greedy text."""
    for block in ("1", "3", "8"):
        assert run(capsys, "Hello", "--block-size", block, *SHORT).out == expected.text


def test_a_block_size_the_draft_cannot_serve_is_refused(loads, capsys):
    """A block size above the draft's was reduced without a message."""
    assert main(["generate", "Hello", "--block-size", "9"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "trained for blocks of 8" in captured.err.splitlines()[-1]


def test_without_a_template_the_prompt_is_continued(loads, capsys):
    """Base models have no chat template."""
    captured = run(capsys, "Hello", "--no-chat-template", "--json", *SHORT)
    assert json.loads(captured.out)["prompt_tokens"] == len(b"Hello")


def test_the_system_message_reaches_the_model(loads, capsys):
    """--system must change the prompt."""
    captured = run(capsys, "Hello", "--system", "Be brief", "--json", *SHORT)
    bare = run(capsys, "Hello", "--json", *SHORT)
    more = json.loads(captured.out)["prompt_tokens"] - json.loads(bare.out)["prompt_tokens"]
    assert more == len(b"<system>Be brief\n")


def test_a_seed_makes_sampling_repeatable_and_is_printed(loads, capsys):
    """A sampled answer cannot be reproduced without its seed."""
    sampled = ("Hello", "--temperature", "1.5", *SHORT)
    first = run(capsys, *sampled, "--seed", "7")
    assert run(capsys, *sampled, "--seed", "7").out == first.out
    assert "seed 7" in first.err
    assert "temperature 1.5" in first.err


def test_unused_options_are_named(loads, capsys):
    """--top-p has no effect in greedy decoding, which must be reported."""
    assert "--top-p: no effect" in run(capsys, "Hello", "--top-p", "0.5", *SHORT).err


def test_a_stop_text_ends_the_answer(loads, capsys, expected):
    """The answer contained the stop string or text after it."""
    stop = expected.text[5:7]
    cut = expected.text[: expected.text.index(stop)]
    captured = run(capsys, "Hello", "--stop", stop, "--json", *SHORT)
    assert json.loads(captured.out)["text"] == cut
    assert json.loads(captured.out)["finish_reason"] == "stop"


def test_a_prompt_longer_than_the_context_is_refused(loads, capsys):
    """A prompt beyond the context length was cut without a message."""
    assert main(["generate", "x" * 2000]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the context holds 1024" in captured.err.splitlines()[-1]
