"""Files of the `gguf` package convert to exactly the values that the package dequantizes."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.convert.sources.gguf import open_gguf
from dflash_mlx.convert.tensors import read_all
from tests.convert.checkpoints import run, weights_of
from tests.gguf.writer import as_gguf, tiny_metadata

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed: pip install gguf")

WIDTH = 256
"""K-quants come in blocks of 256."""
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where a block of each K-quant has its scales in half precision; source: ggml-common.h."""
BY_PACKAGE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def sizes(family):
    return {
        f"{family}.embedding_length": WIDTH,
        f"{family}.feed_forward_length": WIDTH,
        f"{family}.attention.key_length": WIDTH // 4,
    }


def shapes(family):
    """Names and shapes of a two-layer model of width 256, 4 query and 2 key/value heads."""
    yield from {"model.embed_tokens": (262, WIDTH), "model.norm": (WIDTH,)}.items()
    for layer in range(2):
        at = f"model.layers.{layer}"
        for name, rows in (("q", 256), ("k", 128), ("v", 128), ("o", 256)):
            yield f"{at}.self_attn.{name}_proj", (rows, WIDTH)
        for name in ("gate", "up", "down"):
            yield f"{at}.mlp.{name}_proj", (WIDTH, WIDTH)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{name}", (WIDTH,)
        if family == "qwen3":
            yield from {f"{at}.self_attn.{n}_norm": (WIDTH // 4,) for n in "qk"}.items()


def blocks(kind, shape, random):
    """Bytes [rows, bytes of a row] of a tensor, quantized by the package or random."""
    if kind not in HALVES:
        values = random.normal(0, 0.1, shape).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = random.integers(0, 256, (shape[0], shape[1] // 256, block_bytes), dtype=np.uint8)
    for place in HALVES[kind]:
        scales = random.normal(0, 0.01, raw.shape[:2]).astype(np.float16)
        raw[..., place : place + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(shape[0], -1)


def write(path, family, kind):
    """Write a model and return its values in our names, as the package unpacks them."""
    writer = gguf.GGUFWriter(path, family)
    for key, value in tiny_metadata(family, **sizes(family)).items():
        if key != "general.architecture":
            _add(writer, key, value)
    random = np.random.default_rng(0)
    stored, values = {}, {}
    for name, shape in shapes(family):
        how = kind if len(shape) == 2 else "F32"
        packed = blocks(how, shape, random)
        stored[name] = (how, packed)
        values[name] = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[how])
    for name, (how, packed) in permuted(stored, family).items():
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType[how])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def permuted(stored, family):
    """The tensors under GGUF's names, rows of q and k in llama.cpp's order for llama."""
    written = {}
    for name, (how, packed) in stored.items():
        if family == "llama" and name.endswith(("q_proj", "k_proj")):
            heads = 4 if "q_proj" in name else 2
            # llama.cpp, LlamaModel.permute
            packed = (
                packed.reshape(heads, 2, len(packed) // heads // 2, -1)
                .swapaxes(1, 2)
                .reshape(packed.shape)
            )
        written |= as_gguf({name: (how, packed)}, "as it is")
    return written


def _add(writer, key, value):
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", [*BY_PACKAGE, *HALVES])
def test_values_equal_those_of_the_gguf_package(tmp_path, family, kind):
    """A misplaced nibble or row gives a broken model with correct shapes."""
    expected = write(tmp_path / "tiny.gguf", family, kind)
    run(tmp_path / "tiny.gguf", tmp_path / "out", dequantize=True, dtype="float32")
    found = weights_of(tmp_path / "out")
    assert {f"{name}.weight" for name in expected} == found.keys()
    for name, values in expected.items():
        got = np.array(found[f"{name}.weight"])
        assert np.array_equal(got, values), name


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", *HALVES])
def test_other_types_quantize_from_their_exact_values(tmp_path, kind):
    """K-quants convert through their values, which must not be rounded in between."""
    expected = write(tmp_path / "tiny.gguf", "qwen3", kind)
    run(tmp_path / "tiny.gguf", tmp_path / "out", dequantize=True, bits=6, dtype="float32")
    found = weights_of(tmp_path / "out")
    for name in ("model.embed_tokens", "model.layers.1.self_attn.k_proj"):
        parts = mx.quantize(mx.array(expected[name]), group_size=64, bits=6)
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            assert mx.array_equal(found[f"{name}.{part}"], array), part


def test_row_ranges_equal_the_whole_tensor(tmp_path):
    """An offset error appears only when a tensor is read by row range."""
    write(tmp_path / "tiny.gguf", "llama", "Q6_K")
    rows = open_gguf(tmp_path / "tiny.gguf").tensors["model.layers.0.self_attn.q_proj.weight"]
    pieces = [rows.read(start, min(start + 37, 256)) for start in range(0, 256, 37)]
    assert np.array_equal(np.concatenate(pieces), np.array(read_all(rows)))
