"""A `.gguf` file as a configuration and weights in mlx-lm's names, for llama and qwen3.

F32, F16, Q8_0, Q4_0 and Q4_1 are read without conversion (quantized tensors become MLX's weight,
scales and biases in groups of 32); other types are refused.
Letters: H query or key/value heads, d their size, D hidden size, F feed-forward size.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.gguf.header import GGUFHeader, TensorInfo, read_header
from dflash_mlx.gguf.rope import llama3_scaling
from dflash_mlx.gguf.tokenizer import GGUFTokenizer, read_tokenizer, texts_of
from dflash_mlx.system.foreign import quoted, reading

_FAMILIES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_GROUP_SIZE = 32
_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class GGUFCheckpoint:
    """One file: `config` with the keys of a `config.json`, lazy weights, and the vocabulary.

    The caller may remove tensors from `weights` one by one, so that a stored tensor is freed when
    its converted form exists.
    """

    config: dict[str, Any]
    weights: dict[str, mx.array]
    tokenizer: GGUFTokenizer


@dataclass(frozen=True)
class TensorPlace:
    """The module of a tensor, its shape, and its number of heads if its rows are permuted."""

    name: str
    shape: tuple[int, ...]
    permuted_heads: int | None = None


def read_gguf(path: Path, outline: bool = False) -> GGUFCheckpoint:
    """Return the model in the GGUF file at `path`; an `outline` has shapes and types only.

    Before a weight is read the header is checked: each tensor of the family is present once, with
    the shape that the configuration gives it, and there are no others.

    Raises:
        BadCheckpoint: the file is truncated, corrupt or incomplete.
        UnsupportedModel: another family, tokenizer or tensor type.
    """
    header = read_header(path)
    config, tokenizer, places = describe(header, path)
    if outline:
        return GGUFCheckpoint(config, dict(_outlines(header, places)), tokenizer)
    with reading(path, "the weights", "download it again"):
        stored: Any = mx.load(str(path), format="gguf")
    return GGUFCheckpoint(config, dict(_renamed(stored, places)), tokenizer)


def describe(
    header: GGUFHeader, path: Path
) -> tuple[dict[str, Any], GGUFTokenizer, dict[str, TensorPlace]]:
    """Return the configuration, the vocabulary and the places of the tensors of a header.

    Raises:
        BadCheckpoint: the header is incomplete or contradicts itself.
        UnsupportedModel: another family or tokenizer.
    """
    config = read_config(header, path)
    tokenizer = read_tokenizer(header.metadata, path)
    places = checked_places(header, config, path)
    config["eos_token_id"] = list(tokenizer.eos_token_ids)
    if tokenizer.bos_id is not None:
        config["bos_token_id"] = tokenizer.bos_id
    if quantization := quantization_of(header.tensors, places):
        config["quantization"] = quantization
    return config, tokenizer, places


def read_config(header: GGUFHeader, path: Path) -> dict[str, Any]:
    """Return the header of the file at `path` as the keys of a `config.json`.

    Raises:
        BadCheckpoint: a value is missing or of another type.
        UnsupportedModel: a family, a rope scaling or a split file that is not supported.
    """
    facts = header.metadata
    family = facts.get("general.architecture")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise UnsupportedModel(
            f"{path} holds the architecture {quoted(family)}; GGUF files are read for "
            f"{', '.join(_FAMILIES)}. Give the safetensors repository instead"
        )
    if facts.get("split.count", 1) != 1:
        raise UnsupportedModel(f"{path} is one part of several; merge the parts into one file")

    def whole(key: str, default: int | None = None) -> int:
        value = facts.get(f"{family}.{key}", default)
        if type(value) is not int or value < 1:
            raise BadCheckpoint(
                f"{path}: {family}.{key} is {quoted(value)}; it needs a whole number > 0"
            )
        return value

    def number(key: str, default: float | None = None) -> float:
        value = facts.get(f"{family}.{key}", default)
        if not isinstance(value, float) or not 0 < value < 1e12:
            raise BadCheckpoint(f"{path}: {family}.{key} is {quoted(value)}; it needs a number > 0")
        return value

    heads, hidden = whole("attention.head_count"), whole("embedding_length")
    head_dim = whole("attention.key_length", hidden // heads)
    if whole("rope.dimension_count", head_dim) != head_dim or facts.get(f"{family}.expert_count"):
        raise UnsupportedModel(
            f"{path} is a {family} variant with partial rotary embedding or experts, which GGUF "
            "support lacks; give the safetensors repository instead"
        )
    config = {
        "architectures": [_FAMILIES[family]],
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": whole("block_count"),
        "intermediate_size": whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "vocab_size": len(texts_of(facts, "tokens", path)),
        "max_position_embeddings": whole("context_length"),
        "rope_theta": number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    scaling = _rope_scaling(facts, family, path)
    if scaling is None and (factors := header.tensors.get(_ROPE_FACTORS)):
        scaling = _llama3(factors, config, path)
    if scaling:
        config["rope_scaling"] = scaling
    return config


def _rope_scaling(facts: dict[str, Any], family: str, path: Path) -> dict[str, Any] | None:
    kind = facts.get(f"{family}.rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = facts.get(f"{family}.rope.scaling.factor")
    if kind != "linear" or not isinstance(factor, float) or factor <= 0:
        raise UnsupportedModel(
            f"{path} scales its rope by {quoted(kind)} with factor {quoted(factor)}; GGUF support "
            "has 'none' and 'linear'. Give the safetensors repository instead"
        )
    scaling: dict[str, Any] = {"rope_type": "linear", "factor": factor}
    # without it, context_length is the length before scaling, as in config.json
    original = facts.get(f"{family}.rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3(factors: TensorInfo, config: dict[str, Any], path: Path) -> dict[str, Any]:
    scaling = None
    if factors.type == "F32" and factors.shape == (config["head_dim"] // 2,):
        with path.open("rb") as file:
            file.seek(factors.offset)
            values = struct.unpack(f"<{factors.shape[0]}f", file.read(factors.n_bytes))
        scaling = llama3_scaling(list(values), config["rope_theta"])
    if scaling is None:
        raise UnsupportedModel(
            f"{path} scales its rope by factors in {_ROPE_FACTORS} that are not Llama 3's; give "
            "the safetensors repository instead"
        )
    return scaling


def _places(config: dict[str, Any]) -> dict[str, TensorPlace]:
    """Return the place of every tensor that a file of this configuration needs, by GGUF name."""
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    # llama's converter stores rotary pairs next to each other, qwen3's half a head apart
    llama = config["model_type"] == "llama"
    layer = {
        "attn_norm": TensorPlace("input_layernorm", (hidden,)),
        "attn_q": TensorPlace("self_attn.q_proj", (heads * dim, hidden), heads if llama else None),
        "attn_k": TensorPlace(
            "self_attn.k_proj", (kv_heads * dim, hidden), kv_heads if llama else None
        ),
        "attn_v": TensorPlace("self_attn.v_proj", (kv_heads * dim, hidden)),
        "attn_output": TensorPlace("self_attn.o_proj", (hidden, heads * dim)),
        "ffn_norm": TensorPlace("post_attention_layernorm", (hidden,)),
        "ffn_gate": TensorPlace("mlp.gate_proj", (ffn, hidden)),
        "ffn_up": TensorPlace("mlp.up_proj", (ffn, hidden)),
        "ffn_down": TensorPlace("mlp.down_proj", (hidden, ffn)),
    }
    if not llama:
        layer["attn_q_norm"] = TensorPlace("self_attn.q_norm", (dim,))
        layer["attn_k_norm"] = TensorPlace("self_attn.k_norm", (dim,))
    places = {
        "token_embd": TensorPlace("model.embed_tokens", (config["vocab_size"], hidden)),
        "output_norm": TensorPlace("model.norm", (hidden,)),
    }
    if not config["tie_word_embeddings"]:
        places["output"] = TensorPlace("lm_head", (config["vocab_size"], hidden))
    for index in range(config["num_hidden_layers"]):
        for name, place in layer.items():
            places[f"blk.{index}.{name}"] = TensorPlace(
                f"model.layers.{index}.{place.name}", place.shape, place.permuted_heads
            )
    return places


def checked_places(
    header: GGUFHeader, config: dict[str, Any], path: Path
) -> dict[str, TensorPlace]:
    """Return the place of every tensor of the file, by its GGUF name without `.weight`.

    Raises:
        BadCheckpoint: a tensor is missing, or has another shape than `config` gives it.
        UnsupportedModel: the file holds a tensor that the family has no place for.
    """
    # a false block_count must not make the table large
    if config["num_hidden_layers"] > len(header.tensors):
        raise BadCheckpoint(
            f"{path} announces {config['num_hidden_layers']} layers and holds "
            f"{len(header.tensors)} tensors; download it again"
        )
    places = _places(config)
    wanted = {f"{name}.weight": place for name, place in places.items()}
    if missing := sorted(wanted.keys() - header.tensors.keys()):
        raise BadCheckpoint(f"{path} lacks {_first_names(missing)}; download it again")
    known = wanted.keys() | ({_ROPE_FACTORS} if config["model_type"] == "llama" else set())
    if extra := sorted(header.tensors.keys() - known):
        raise UnsupportedModel(
            f"{path} also holds {_first_names(extra)}, which {config['model_type']} models do not "
            "have; give the safetensors repository instead"
        )
    for name, place in wanted.items():
        if header.tensors[name].shape != place.shape:
            raise BadCheckpoint(
                f"{path}: {name} has the shape {header.tensors[name].shape}; its configuration "
                f"needs {place.shape}"
            )
    return places


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def quantization_of(
    tensors: dict[str, TensorInfo], places: dict[str, TensorPlace]
) -> dict[str, Any] | None:
    """Return mlx-lm's quantization map: the most frequent bits, and the layers that differ."""
    bits = {
        place.name: _BITS[tensors[f"{name}.weight"].type]
        for name, place in places.items()
        if tensors[f"{name}.weight"].type in _BITS
    }
    if not bits:
        return None
    usual = Counter(bits.values()).most_common(1)[0][0]
    settings: dict[str, Any] = {"group_size": _GROUP_SIZE, "bits": usual, "mode": "affine"}
    for name, n_bits in bits.items():
        if n_bits != usual:
            settings[name] = {"group_size": _GROUP_SIZE, "bits": n_bits, "mode": "affine"}
    return settings


def _outlines(header: GGUFHeader, places: dict[str, TensorPlace]) -> Iterator[tuple[str, mx.array]]:
    """Yield arrays with the shapes and types that `mx.load` gives; their values are never used."""
    for name, place in places.items():
        kind = header.tensors[f"{name}.weight"].type
        if kind not in _BITS:
            dtype = mx.float16 if kind == "F16" else mx.float32
            yield f"{place.name}.weight", mx.zeros(place.shape, dtype)
            continue
        *rows, width = place.shape
        yield f"{place.name}.weight", mx.zeros((*rows, width * _BITS[kind] // 32), mx.uint32)
        for part in ("scales", "biases"):
            yield f"{place.name}.{part}", mx.zeros((*rows, width // _GROUP_SIZE), mx.float16)


def _renamed(
    stored: dict[str, mx.array], places: dict[str, TensorPlace]
) -> Iterator[tuple[str, mx.array]]:
    for name, place in places.items():
        for part in ("weight", "scales", "biases"):
            array = stored.pop(f"{name}.{part}", None)
            if array is not None:
                if place.permuted_heads:
                    array = _unpermuted(array, place.permuted_heads)
                yield f"{place.name}.{part}", array


def _unpermuted(rows: mx.array, heads: int) -> mx.array:
    """Return `rows` [H d, ...] with the rotary pairs of each head half a head apart.

    Row 2 i + j of a head moves to j d/2 + i. Packed weights, scales and biases keep whole rows,
    so one permutation fits all three. Source: `LlamaModel.permute` in llama.cpp's converter.
    """
    per_head = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return per_head.swapaxes(1, 2).reshape(rows.shape)
