"""The command line as a process with the embedded pair."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_mlx.hub.resolve import find_packaged
from dflash_mlx.pairs import registry

ROOT = Path(__file__).resolve().parents[2]
CARD = registry.find("smollm2-135m")

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.skipif(
        not all(find_packaged(name) for name in (CARD.target, CARD.draft)),
        reason="the embedded pair is not installed",
    ),
]


def run(*arguments, stdin=""):
    return subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # more threads are slower on busy cores
    )


@pytest.mark.parametrize("block", ["auto", "3"])
def test_generate_answers(block):
    """The whole path from the wheel's file to the text; auto may disable speculation."""
    question = "What is the capital of France?"
    done = run(
        "generate",
        question,
        *["--max-tokens", "8", "--json", "--temperature", "0"],
        "--block-size",
        block,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["text"] == "The capital of France is Paris."
    assert (found["finish_reason"], found["generated_tokens"]) == ("stop", 7)
    assert block == "auto" or found["stats"]["accepted"] > 0
    assert found["stats"]["blas"] in ("openblas", "bundled", "accelerate")
    assert "SmolLM2-135M-Instruct" in done.stderr and "block " in done.stderr


def test_chat_in_a_pipe_remembers():
    """The second turn must reuse the KV cache of the first."""
    turns = "My name is Ada.\nWhat is my name?\n"
    done = run("chat", "--max-tokens", "4", "--block-size", "2", stdin=turns)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("prompt ")]
    assert "+ 0 cached" in lines[0] and "+ 0 cached" not in lines[1]
    assert "Traceback" not in done.stderr
