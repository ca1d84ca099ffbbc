"""Writes tiny GGUF files for tests: the container, ggml's three simple formats, a tiny model."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "BF16": 30}
Tensor = tuple[str, np.ndarray]
"""A type's name and the float values, shape [rows, columns] or [rows]."""


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, Tensor], *, version: int = 3) -> bytes:
    """Return the file. Metadata: str, bool, int (uint32), float (float32) and lists of them."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _typed(value)
    body = b""
    for name, (kind, values) in tensors.items():
        dims = values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", TYPES[kind], len(body))
        body += encode(kind, values)
        body += bytes(-len(body) % 32)
    return head + bytes(-len(head) % 32) + body


def encode(kind: str, values: np.ndarray) -> bytes:
    """Return the bytes that ggml stores for `values`, in blocks of 32 along the last axis."""
    if kind in ("F32", "F16"):
        return values.astype(np.float32 if kind == "F32" else np.float16).tobytes()
    if kind not in ("Q8_0", "Q4_0", "Q4_1"):
        return bytes(values.size * 2)
    out = b""
    for block in values.astype(np.float32).reshape(-1, 32):
        scale, low, codes = _codes(kind, block)
        out += np.float16(scale).tobytes()
        if kind == "Q8_0":
            out += (codes.astype(np.int16) - 128).astype(np.int8).tobytes()
        else:
            out += np.float16(low).tobytes() if kind == "Q4_1" else b""
            out += (codes[:16] | codes[16:] << 4).astype(np.uint8).tobytes()
    return out


def stored(kind: str, values: np.ndarray) -> np.ndarray:
    """Return the float32 values of those bytes, by ggml's definitions."""
    if kind in ("F32", "F16"):
        return values.astype(np.float32 if kind == "F32" else np.float16).astype(np.float32)
    blocks = []
    for block in values.astype(np.float32).reshape(-1, 32):
        scale, low, codes = _codes(kind, block)
        zero = {"Q8_0": -128 * scale, "Q4_0": -8 * scale, "Q4_1": low}[kind]
        blocks.append(codes.astype(np.float32) * np.float32(scale) + np.float32(zero))
    return np.concatenate(blocks).reshape(values.shape)


def _codes(kind: str, block: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return scale, minimum and unsigned codes of one block of 32 values."""
    low = float(np.float16(block.min()))
    span = {"Q8_0": 127, "Q4_0": 7, "Q4_1": 15}[kind]
    top = block.max() - low if kind == "Q4_1" else np.abs(block).max()
    scale = float(np.float16(top / span)) or 1.0
    shift = {"Q8_0": 128.0, "Q4_0": 8.0, "Q4_1": -low / scale}[kind]
    limit = 255 if kind == "Q8_0" else 15
    return scale, low, np.clip(np.round(block / scale + shift), 0, limit).astype(np.uint8)


def byte_tokens() -> list[str]:
    """Return the 256 letters of the byte-level BPE alphabet, in its order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]


def tiny_metadata(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return the metadata of a two-layer model: hidden size 64, 4 query and 2 key/value heads."""
    tokens = [*byte_tokens(), "<|end|>", "<|start|>", "th", "the", "12", "<think>"]
    facts = {
        "general.architecture": family,
        f"{family}.block_count": 2,
        f"{family}.context_length": 128,
        f"{family}.embedding_length": 64,
        f"{family}.feed_forward_length": 96,
        f"{family}.attention.head_count": 4,
        f"{family}.attention.head_count_kv": 2,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 10000.0,
        f"{family}.attention.key_length": 16,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1, 1, 1, 4],
        "tokenizer.ggml.merges": ["t h", "th e", "1 2"],
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.chat_template": (
            "{% for message in messages %}<|start|>{{ message['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|start|>{% endif %}"
        ),
    }
    return {key: value for key, value in (facts | changes).items() if value is not None}


def tiny_tensors(
    family: str = "llama", kind: str = "F32", *, tied: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """Return weights by mlx-lm's module names, norms in float32."""
    random = np.random.default_rng(seed)

    def weight(*shape: int) -> Tensor:
        return kind, random.normal(0, 1 / math.sqrt(shape[-1]), shape)

    def norm(size: int) -> Tensor:
        return "F32", random.uniform(0.5, 1.5, size)

    tensors = {"model.embed_tokens": weight(262, 64), "model.norm": norm(64)}
    if not tied:
        tensors["lm_head"] = weight(262, 64)
    for layer in range(2):
        parts = {
            "input_layernorm": norm(64),
            "self_attn.q_proj": weight(64, 64),
            "self_attn.k_proj": weight(32, 64),
            "self_attn.v_proj": weight(32, 64),
            "self_attn.o_proj": weight(64, 64),
            "post_attention_layernorm": norm(64),
            "mlp.gate_proj": weight(96, 64),
            "mlp.up_proj": weight(96, 64),
            "mlp.down_proj": weight(64, 96),
        }
        if family == "qwen3":
            parts |= {"self_attn.q_norm": norm(16), "self_attn.k_norm": norm(16)}
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    return tensors


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def as_gguf(tensors: dict[str, Tensor], family: str = "llama") -> dict[str, Tensor]:
    """Return the tensors as llama.cpp's converter writes them: renamed, q and k permuted."""
    written = {}
    for name, (kind, values) in tensors.items():
        prefix, _, rest = name.removeprefix("model.layers.").partition(".")
        new = f"blk.{prefix}.{_GGUF_NAMES[rest]}" if rest in _GGUF_NAMES else _GGUF_NAMES[name]
        if family == "llama" and rest in ("self_attn.q_proj", "self_attn.k_proj"):
            pairs = [
                head * 16 + half * 8 + i
                for head in range(len(values) // 16)
                for i in range(8)
                for half in range(2)
            ]
            values = values[pairs]
        written[f"{new}.weight"] = (kind, values)
    return written


def write_tiny(path: Path, family: str = "llama", kind: str = "F32", **changes: Any) -> Path:
    """Write a tiny model to `path` and return the path; `changes` go into the metadata."""
    tensors = as_gguf(tiny_tensors(family, kind), family)
    path.write_bytes(gguf_bytes(tiny_metadata(family, **changes), tensors))
    return path


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    if isinstance(value, list):
        items = [_typed(item) for item in value]
        kind = items[0][:4] if items else struct.pack("<I", 8)
        return (
            struct.pack("<I", 9)
            + kind
            + struct.pack("<Q", len(items))
            + b"".join(item[4:] for item in items)
        )
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    return struct.pack("<If", 6, value)
