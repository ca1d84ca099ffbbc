"""GGUF files convert to folders that mlx-lm loads, with ggml's values."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model, load_tokenizer

from dflash_mlx.convert.sources.gguf import open_gguf
from dflash_mlx.convert.tensors import read_all, row_count
from dflash_mlx.errors import BadRequest, UnsupportedModel
from dflash_mlx.gguf.read import read_gguf
from dflash_mlx.loading.compute import Compute
from dflash_mlx.loading.target import load_target
from tests.convert.checkpoints import run, weights_of
from tests.gguf.writer import stored, tiny_metadata, tiny_tensors, write_tiny

KINDS = ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_whole_tensors_of_mlx(tmp_path, family, kind):
    """Nibbles or rotary rows in a wrong order give wrong values with correct shapes."""
    path = write_tiny(tmp_path / "tiny.gguf", family, kind)
    ours, whole = open_gguf(path), read_gguf(path)
    assert ours.config == whole.config
    assert ours.tensors.keys() == whole.weights.keys()
    for name, array in whole.weights.items():
        rows = ours.tensors[name]
        assert mx.array_equal(read_all(rows), array), name
        total = row_count(rows.shape)
        pieces = [rows.read(start, min(start + 5, total)) for start in range(0, total, 5)]
        assert np.array_equal(np.concatenate(pieces), rows.read(0, total)), name


@pytest.mark.parametrize("kind", KINDS)
def test_ggml_values_convert_without_loss(tmp_path, kind):
    """The file's quantization is MLX's in another byte order, so no value may change."""
    path = write_tiny(tmp_path / "tiny.gguf", "llama", kind)
    run(path, tmp_path / "packed", dequantize=kind in ("F32", "F16"))
    run(path, tmp_path / "values", dequantize=True, dtype="float32")
    expected = tiny_tensors("llama", kind)
    values = weights_of(tmp_path / "values")
    for name, (how, array) in expected.items():
        got = np.array(values[f"{name}.weight"].astype(mx.float32))
        # halves: mx.dequantize returns the type of the scales
        assert np.allclose(got, stored(how, array), rtol=2e-3, atol=2e-3), name
    model, _ = load_model(tmp_path / "packed")
    assert mx.isfinite(model(mx.array([[1, 2, 3]]))).all()


def test_a_converted_file_gives_the_logits_of_the_file(tmp_path):
    """The runtime must compute the same logits from the folder and from the file."""
    path = write_tiny(tmp_path / "tiny.gguf", "llama", "Q4_1")
    run(path, tmp_path / "out")
    compute = Compute("cpu", dense=True, dtype=mx.float32)
    tokens = mx.array([[5, 6, 7, 8]])
    logits = []
    for place in (path, tmp_path / "out"):
        target = load_target(place, compute).target
        logits.append(target.logits(target.forward(tokens, target.make_caches(), ()).hidden))
    assert mx.array_equal(*logits)


def test_the_tokenizer_is_converted(tmp_path):
    """A converted folder without a tokenizer cannot be used."""
    path = write_tiny(tmp_path / "tiny.gguf")
    run(path, tmp_path / "out", dequantize=True)
    tokenizer = load_tokenizer(tmp_path / "out")
    tokens = tiny_metadata()["tokenizer.ggml.tokens"]
    assert tokenizer.encode("the") == [tokens.index("the")]
    assert tokenizer.has_chat_template
    assert tokenizer.eos_token_id == 256


def test_other_bits_than_those_of_the_file_are_refused(tmp_path):
    """Quantizing twice needs an explicit option."""
    path = write_tiny(tmp_path / "tiny.gguf", "llama", "Q8_0")
    with pytest.raises(BadRequest, match="--dequantize"):
        run(path, tmp_path / "out", bits=4, group_size=32)
    run(path, tmp_path / "same", bits=8, group_size=32)
    run(path, tmp_path / "out", bits=4, group_size=32, dequantize=True)


def test_bfloat16_is_not_converted(tmp_path):
    """MLX's own reader converts bfloat16 to float16."""
    path = write_tiny(tmp_path / "tiny.gguf", "llama", "BF16")
    rows = open_gguf(path).tensors["model.layers.0.mlp.up_proj.weight"]
    assert rows.dtype == "BF16"
    assert read_all(rows).dtype == mx.bfloat16


def test_other_types_need_the_gguf_package(tmp_path, monkeypatch):
    """The error must name the package that reads the type."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = write_tiny(tmp_path / "tiny.gguf", "llama", "Q4_K")
    with pytest.raises(UnsupportedModel, match=r"Q4_K.*install.* 'gguf>="):
        open_gguf(path)
