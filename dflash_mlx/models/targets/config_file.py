"""A target's `config.json`, of any transformers version, in the spelling of mlx-lm's modules.

Every key that changes the mathematics is used, or refused by name. It must not import MLX, so
that a model can be refused before it is downloaded. Sources: the configuration classes of
transformers 5.24 and the `ModelArgs` of mlx-lm 0.32.2; a test compares both with the tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.rope_config import FULL, SLIDING, read_rope
from dflash_mlx.models.targets.config_keys import check_keys
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES, check_supported
from dflash_mlx.models.targets.rope_spelling import ROPE_KEYS, main_rope, spell_rope
from dflash_mlx.system.foreign import quoted

_MAX_LENGTH = 2**40
"""Far above every published context, and exact in floating point."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "glm4_moe": {"use_qk_norm": False, "tie_word_embeddings": False},
    "longcat_flash": {"attention_method": "MLA", "zero_expert_type": "identity"},
    "minimax": {"shared_intermediate_size": 0},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 128},
    "qwen3_moe": {
        "tie_word_embeddings": False,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
    },
    "qwen3_next": {
        "norm_topk_prob": True,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    },
}
"""transformers' defaults of keys that mlx-lm requires, or gives another default."""

_RENAMED: Mapping[str, Mapping[str, str]] = {
    "gemma3": {"_sliding_window_pattern": "sliding_window_pattern"},
    "gemma3_text": {"_sliding_window_pattern": "sliding_window_pattern"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
}
"""Keys as transformers 5 writes them, and mlx-lm's names."""

_INTERVALS: Mapping[str, tuple[str, str, int]] = {
    "gemma3": ("sliding_window_pattern", SLIDING, 6),
    "gemma3_text": ("sliding_window_pattern", SLIDING, 6),
    "qwen3_5": ("full_attention_interval", "linear_attention", 4),
    "qwen3_5_moe": ("full_attention_interval", "linear_attention", 4),
    "qwen3_next": ("full_attention_interval", "linear_attention", 4),
}
"""Modules in which every n-th layer is full: the key of n, the other layers' type, the default."""


@dataclass(frozen=True)
class TargetConfig:
    """A checked configuration.

    Args:
        values: the `config.json` that mlx-lm reads.
        text: the part of `values` that describes the text model.
        context_length: tokens that the target accepts, None where the file has no length.
    """

    values: Mapping[str, Any]
    text: Mapping[str, Any]
    context_length: int | None


def read_target_config(config: Mapping[str, Any], source: str) -> TargetConfig:
    """Return a target's `config.json` in mlx-lm's spelling; errors name `source`.

    Raises:
        UnsupportedModel: another family, or a key that needs mathematics that mlx-lm lacks.
        BadCheckpoint: a key is missing, contradictory, or has an impossible value.
    """
    check_supported(config, source)
    module = MLX_LM_MODULES[config["model_type"]]
    inner = config.get("text_config")
    if inner is not None and not isinstance(inner, Mapping):
        raise BadCheckpoint(f"{source}: text_config is {quoted(inner)}; it needs a table")
    text: dict[str, Any] = dict(config if inner is None else inner)
    if inner is not None:
        stray = [key for key in sorted(ROPE_KEYS & config.keys()) if config[key] != text.get(key)]
        if stray:
            raise BadCheckpoint(
                f"{source} has {', '.join(stray)} beside text_config, where it has no effect; move "
                "it into text_config"
            )
        if "tie_word_embeddings" in config:  # transformers reads it there, mlx-lm does not
            text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    text = {**_DEFAULTS.get(module, {}), **_renamed(module, text, source)}
    text = _with_interval(module, text, source)
    if text.get("gating") == "per-head":  # Laguna; mlx-lm's spelling is true
        text["gating"] = True
    if module.startswith("gemma4"):
        text = _with_global_layers(text, source)
    check_keys(module, text, source)
    ropes = read_rope(text, source)
    spelled = spell_rope(module, ropes, text, source)
    text = {key: value for key, value in text.items() if key not in ROPE_KEYS} | spelled
    longest = text.get("max_position_embeddings")
    length = None
    if longest is not None or module == "gpt_oss":
        length = _context_length(module, longest, main_rope(ropes), source)
    values = text if inner is None else {**config, "text_config": text}
    return TargetConfig(values, text, length)


def _renamed(module: str, text: Mapping[str, Any], source: str) -> dict[str, Any]:
    renamed = dict(text)
    for new, old in _RENAMED.get(module, {}).items():
        if new in renamed:
            value = renamed.pop(new)
            if renamed.setdefault(old, value) != value:
                raise BadCheckpoint(
                    f"{source}: {old} is {quoted(renamed[old])} and {new} is {quoted(value)}; they "
                    "need to be the same"
                )
    return renamed


def _with_interval(module: str, text: dict[str, Any], source: str) -> dict[str, Any]:
    """Return `text` with the interval of full layers that `layer_types` lists, where it does."""
    if module not in _INTERVALS or text.get("layer_types") is None:
        return text
    key, other, default = _INTERVALS[module]
    types = text["layer_types"]
    first = types.index(FULL) + 1 if isinstance(types, list) and FULL in types else 0
    # without a full layer, any interval above the number of layers says so
    interval = first or (len(types) + 1 if isinstance(types, list) else 0)
    expected = [FULL if (i + 1) % interval == 0 else other for i in range(len(types))]
    stated = text.get(key, default if expected == types else interval)
    if types != expected or (key in text and not _same_layers(text[key], interval, len(types))):
        raise UnsupportedModel(
            f"{source}: layer_types is {quoted(types)} and {key} is {quoted(stated)}; it needs a "
            "full layer after each equal number of others. Use another model"
        )
    return {**text, key: text.get(key, interval)}


def _same_layers(stated: Any, interval: int, n_layers: int) -> bool:
    """Return whether two intervals place the full layers of a model alike."""
    return stated == interval or (
        isinstance(stated, int) and stated > n_layers and interval > n_layers
    )


def _with_global_layers(text: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a Gemma 4 `text` with the sizes of full layers that `per_layer_config` lists."""
    layers = text.pop("per_layer_config", None)
    if layers is None:
        return text
    types = text.get("layer_types")
    if not isinstance(layers, Mapping) or not isinstance(types, list):
        raise BadCheckpoint(
            f"{source}: per_layer_config is {quoted(layers)} and layer_types {quoted(types)}; they "
            "need a table and a list"
        )
    full = {index for index, kind in enumerate(types) if kind == FULL}
    changes = list(layers.values())
    known = {"head_dim", "num_key_value_heads"}
    where = {int(key) for key in layers if str(key).isdecimal()}
    if changes and (
        where != full
        or any(change != changes[0] for change in changes)
        or not isinstance(changes[0], Mapping)
        or changes[0].keys() - known
    ):
        raise UnsupportedModel(
            f"{source}: per_layer_config is {quoted(layers)}; supported are equal head_dim and "
            "num_key_value_heads of all full layers. Use another model"
        )
    change = changes[0] if changes else {}
    text = {"global_head_dim": change.get("head_dim", text.get("head_dim", 256)), **text}
    return {"num_global_key_value_heads": change.get("num_key_value_heads"), **text}


def _context_length(module: str, longest: Any, rope: Any, source: str) -> int | None:
    if longest is None:  # older gpt-oss conversions have the length in the scaling only
        original = rope.scaling.get("original_max_position_embeddings") if rope else None
        return rope.context_length(original) if original else None
    if type(longest) is not int or not 1 <= longest <= _MAX_LENGTH:
        raise BadCheckpoint(
            f"{source}: max_position_embeddings is {quoted(longest)}; it needs a whole number "
            f"from 1 to {_MAX_LENGTH}"
        )
    if rope is None or (module.startswith("gemma") and rope.kind == "linear"):
        return longest  # Gemma's published linear scaling is part of its length already
    return int(rope.context_length(longest))
