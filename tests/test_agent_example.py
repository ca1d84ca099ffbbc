"""examples/agent.py: a whole task with real rendering and parsing, and a target that is scripted.

The embedded model is too small to call tools reliably, so the tokens of the answers are given.
"""

import importlib.util
import json
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_mlx.config import GenerationConfig
from tests.engine.test_chat import qwen3_tokenizer
from tests.engine.test_templates_in_sessions import open_engine

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def agent():
    spec = importlib.util.spec_from_file_location("agent", ROOT / "examples" / "agent.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripted(tokenizer, answers):
    """A processor that writes one answer after the other, each ended by the end token."""
    ids = [[*tokenizer.encode(text), *tokenizer.eos_token_ids] for text in answers]
    started, answer = None, -1

    def process(tokens, logits):
        nonlocal started, answer
        if started is None or len(tokens) - started >= len(ids[answer]):
            started, answer = len(tokens), answer + 1
        wanted = ids[answer][len(tokens) - started]
        return mx.where(mx.arange(logits.shape[-1]) == wanted, 0.0, -1e9)[None]

    return process


def test_a_task_edits_a_file(agent, tmp_path, capsys):
    """An example that does not run is worse than none."""
    (tmp_path / "util.py").write_text("def double(x):\n    return x + x\n")
    tokenizer = qwen3_tokenizer()
    answers = [
        call("list_files"),
        call("read_file", path="util.py"),
        call("replace_text", path="util.py", old="x + x", new="2 * x"),
        "I replaced the sum by a product.",
    ]
    with open_engine("qwen3", tokenizer, max_position_embeddings=8192) as engine:
        config = GenerationConfig(logits_processors=(scripted(tokenizer, answers),), block_size=1)
        said = agent.run(engine, "Use a product in double().", tmp_path, config)
    assert said == answers[-1]
    assert (tmp_path / "util.py").read_text() == "def double(x):\n    return 2 * x\n"
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("(")[0] for line in printed] == [
        *("list_files", "read_file", "replace_text")
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("read_file", {"path": "../secret"}, "outside of the folder"),
        ("read_file", {"path": "missing"}, "No such file"),
        ("read_file", {"file": "x"}, "unexpected keyword"),
        ("call", {"name": "list_files", "arguments": {}}, "there is no tool"),
        ("replace_text", {"path": "a", "old": "x", "new": "y"}, "occurs 2 times"),
    ],
)
def test_mistakes_of_the_model_are_text_for_the_model(agent, tmp_path, name, arguments, error):
    """An exception ended the task; a path outside of the folder could be read."""
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / "a").write_text("x x")
    found = agent.Tools(folder).call(name, arguments)
    assert found.startswith("error: ")
    assert error in found


def test_the_example_is_short():
    """A page that fits in one look."""
    assert len((ROOT / "examples" / "agent.py").read_text().splitlines()) < 120
