"""Small checkpoints in published layouts, and helpers that convert them."""

import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.outcome import ConversionOutcome
from dflash_mlx.convert.run import convert
from dflash_mlx.models.draft.build import draft_model
from dflash_mlx.models.draft.config_file import read_draft_config
from tests.tiny import write_target

WIDE = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64}
"""Sizes that groups of 32 and 64 divide."""


def target_folder(folder: Path, family: str = "qwen3", **changes: Any) -> Path:
    """Write a random target of a family with the side files of a repository."""
    write_target(folder, family, **{**WIDE, **changes})
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    (folder / "LICENSE").write_text("Apache-2.0")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags:\n- x\n---\n# The original\n")
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single bytes in the form that transformers saves."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {
        token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    end = "<end>"
    letters[end] = len(letters)
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)


DRAFT_CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 260,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "block_size": 8,
    "num_target_layers": 3,
    "torch_dtype": "bfloat16",
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "dflash_config": {"mask_token_id": 257, "target_layer_ids": [0, 2]},
}


DRAFT2_CONFIG: dict[str, Any] = {
    **DRAFT_CONFIG,
    "architectures": ["DFlash2DraftModel"],
    "is_causal": False,
    "dflash_config": {
        **DRAFT_CONFIG["dflash_config"],
        **{"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 64, "selector_top_k": 4},
    },
}


def draft_weights(
    config: dict[str, Any] = DRAFT_CONFIG, more: tuple[str, ...] = (), seed: int = 3
) -> dict[str, mx.array]:
    """Return the runtime's tensors of a random bfloat16 draft; `more` are additional names."""
    model = draft_model(read_draft_config(config), more)
    names = [(name, array.shape) for name, array in tree_flatten(model.parameters())]
    keys = mx.random.split(mx.random.key(seed), len(names))
    return {
        name: (mx.random.normal(shape, key=key) * 0.1 + (1 if "norm" in name else 0)).astype(
            mx.bfloat16
        )
        for (name, shape), key in zip(names, keys, strict=True)
    }


def draft_folder(
    folder: Path,
    weights: dict[str, mx.array] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a DFlash draft in its published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or DRAFT_CONFIG))
    mx.save_safetensors(str(folder / "model.safetensors"), weights or draft_weights())
    return folder


def speculators_config() -> dict[str, Any]:
    """Return `DRAFT_CONFIG` in speculators layout: nested, layer ids one higher."""
    flat = dict(DRAFT_CONFIG)
    outer = {"architectures", "auto_map", "dflash_config", "block_size", "num_target_layers"}
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": {key: flat[key] for key in flat if key not in outer},
        "aux_hidden_state_layer_ids": [1, 3],
        "mask_token_id": 257,
        "block_size": 8,
        "draft_vocab_size": 260,
        "num_target_layers": 3,
    }


def save_numpy(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write a safetensors file from types, shapes and bytes, without checking them."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += raw
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def run(source: Path, out: Path, **options: Any) -> ConversionOutcome:
    """Convert; verification is off unless requested."""
    options = {"verify": False, **options}
    return convert(ConvertConfig(source=str(source), out=out, **options))


def weights_of(folder: Path) -> dict[str, mx.array]:
    """Return all tensors of a folder."""
    found: dict[str, mx.array] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(mx.load(str(path)))
    return found


def same(ours: dict[str, mx.array], theirs: dict[str, mx.array]) -> list[str]:
    """Return the names that are not equal bit for bit."""
    names = sorted(ours.keys() | theirs.keys())
    return [
        name
        for name in names
        if name not in ours
        or name not in theirs
        or ours[name].dtype != theirs[name].dtype
        or not np.array_equal(_bytes(ours[name]), _bytes(theirs[name]))
    ]


def _bytes(array: mx.array) -> np.ndarray[Any, Any]:
    if array.size == 0 or array.dtype == mx.bool_:
        return np.array(array)
    return np.array(array.reshape(-1).view(mx.uint8))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
