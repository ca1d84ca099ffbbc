"""Keys of a target's configuration that mlx-lm's modules do not read, with their neutral values.

A key with another value needs mathematics that the module lacks, and is refused by name.
"""

from collections.abc import Mapping
from typing import Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.rope_config import FULL, SLIDING
from dflash_mlx.system.foreign import quoted

_OFF = (None, False, 0)
_ONE = (None, 1, 1.0)

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "alibi": _OFF,
    "attention_bias": _OFF,
    "attention_logit_cap": _OFF,
    "attention_multiplier": _OFF,
    "attn_logit_softcapping": _OFF,
    "clip_qkv": (None,),
    "embedding_multiplier": _ONE,
    "final_logit_softcapping": _OFF,
    "full_attn_alpha_factor": _ONE,
    "full_attn_beta_factor": _ONE,
    "layernorm_full_attention_beta": _ONE,
    "layernorm_mlp_beta": _ONE,
    "hidden_act": (None, "silu", "swish"),
    "hidden_activation": (None, "silu", "swish"),
    "kv_lora_rank": _OFF,
    "linear_attn_alpha_factor": _ONE,
    "linear_attn_beta_factor": _ONE,
    "logit_scale": _ONE,
    "logits_scaling": _ONE,
    "mlp_alpha_factor": _ONE,
    "mlp_beta_factor": _ONE,
    "mlp_bias": _OFF,
    "moe_apply_router_weight_on_input": _OFF,
    "n_routed_experts": _OFF,
    "num_experts": _OFF,
    "num_local_experts": _OFF,
    "parallel_attn": _OFF,
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": _ONE,
    "rope_interleave": _OFF,
    "rope_interleaved": _OFF,
    "rope_traditional": _OFF,
    "router_bias": _OFF,
    "rotary_emb_base": (None,),
    "rotary_pct": _ONE,
    "scale_depth": (None,),
    "scale_emb": _ONE,
    "swiglu_alpha": (None, 1.702),
    "swiglu_limit": (None, 7.0),
    "use_bidirectional_attention": (None, False, "vision"),
    "use_mrope": _OFF,
    "use_parallel_residual": _OFF,
}
"""Neutral values of keys that a module does not read, in every family without another entry.

`vision` makes images bidirectional, which text models never see. gpt-oss has fixed SwiGLU limits.
"""

_GELU = {"hidden_act": (None,), "hidden_activation": (None, "gelu_pytorch_tanh")}
_INTERLEAVED = {"rope_interleave": (None, True), "rope_interleaved": (None, True)}
_READ = ("any",)
"""Marks a key that the module reads."""

_BY_MODULE: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "deepseek_v3": {
        **dict.fromkeys(("attention_bias", "kv_lora_rank", "n_routed_experts"), _READ),
        **_INTERLEAVED,
    },
    "gemma3": {**_GELU, "query_pre_attn_scalar": _READ},
    "gemma4": {
        **_GELU,
        **dict.fromkeys(("final_logit_softcapping", "num_experts", "rope_traditional"), _READ),
    },
    "glm4_moe": dict.fromkeys(("attention_bias", "n_routed_experts"), _READ),
    "glm_moe_dsa": {
        **dict.fromkeys(("attention_bias", "kv_lora_rank", "n_routed_experts"), _READ),
        **_INTERLEAVED,
        "index_topk_freq": _ONE,
        "index_topk_pattern": (None,),
        "indexer_types": ("full",),
        "layer_types": (FULL, "indexed_attention", "deepseek_sparse_attention"),
    },
    "gpt_oss": {
        "attention_bias": (None, True),
        "num_local_experts": _READ,
        "tie_word_embeddings": (None, False),
    },
    "laguna": {
        **dict.fromkeys(("attention_bias", "num_experts"), _READ),
        "gating": (None, True, False, "per-head"),
    },
    "lfm2": {"block_use_swiglu": (None, True), "use_pos_enc": (None, True)},
    "llama": dict.fromkeys(("attention_bias", "mlp_bias", "rope_traditional"), _READ),
    "longcat_flash": {
        **dict.fromkeys(
            ("attention_bias", "kv_lora_rank", "n_routed_experts", "router_bias"), _READ
        ),
        **_INTERLEAVED,
        "attention_method": (None, "MLA"),
        "tie_word_embeddings": (None, False),
        "zero_expert_type": (None, "identity"),
    },
    "minimax": {
        "attn_type_list": (1,),
        "routed_scaling_factor": _ONE,
        "layer_types": (FULL,),
        "num_local_experts": _READ,
        "use_routing_bias": (None, True),
    },
    "muse_glimmer": {"final_logit_softcapping": _READ},
    "qwen2": {"attention_bias": (None, True), "layer_types": (FULL,), "rope_traditional": _READ},
    "qwen3": {"layer_types": (FULL,)},
    "qwen3_5": {
        **dict.fromkeys(("attention_bias", "num_experts"), _READ),
        "attn_output_gate": (None, True),
    },
    "qwen3_moe": {"layer_types": (FULL,), "num_experts": _READ},
    "qwen3_next": dict.fromkeys(("attention_bias", "num_experts"), _READ),
}
"""Entries that replace `_NEUTRAL`, by mlx-lm module."""

_SAME_AS = {
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "kimi_k25": "deepseek_v3",
    "qwen3_5_moe": "qwen3_5",
}

_MAX_SIZE = 2**31 - 1
"""MLX's limit of one dimension of an array."""
_MAX_LAYERS = 10_000
"""Above every published model; mlx-lm and transformers build a list of that length."""

_POSITIVE = (
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_layers",
    "vocab_size",
)


def neutral_values(module: str) -> dict[str, tuple[Any, ...]]:
    """Return the neutral values by key of an mlx-lm module; keys that it reads are left out."""
    entries = {**_NEUTRAL, **_BY_MODULE.get(_SAME_AS.get(module, module), {})}
    return {key: values for key, values in entries.items() if values is not _READ}


def check_keys(module: str, text: Mapping[str, Any], source: str) -> None:
    """Check the keys of a text model that an mlx-lm module does not read.

    Raises:
        UnsupportedModel: a key has a value that the module cannot apply; it is named.
        BadCheckpoint: a size is not a whole number > 0.
    """
    for key in _POSITIVE:
        value = text.get(key)
        largest = _MAX_LAYERS if "layers" in key else _MAX_SIZE
        if value is not None and (type(value) is not int or not 1 <= value <= largest):
            raise BadCheckpoint(
                f"{source}: {key} is {quoted(value)}; it needs a whole number from 1 to {largest}"
            )
    for key, neutral in neutral_values(module).items():
        value = text.get(key)
        values = value if isinstance(value, list) else [value]
        if value is not None and any(item not in neutral for item in values):
            raise UnsupportedModel(
                f"{source} sets {key} to {quoted(value)}, which {module} models here do not "
                f"support; it needs {_spelled(neutral)}. Use another model"
            )
    _check_window(module, text, source)


def _check_window(module: str, text: Mapping[str, Any], source: str) -> None:
    """Check keys of windows that modules without windows ignore."""
    types = text.get("layer_types")
    if types is not None and not isinstance(types, list):
        raise BadCheckpoint(f"{source}: layer_types is {quoted(types)}; it needs a list")
    if SLIDING in (types or ()) and not text.get("sliding_window"):
        raise BadCheckpoint(
            f"{source}: layer_types has {SLIDING} and sliding_window is "
            f"{quoted(text.get('sliding_window'))}; it needs a whole number > 0"
        )
    first, layers = text.get("max_window_layers"), text.get("num_hidden_layers")
    unused = isinstance(first, int) and isinstance(layers, int) and first >= layers
    if module.startswith("qwen") and text.get("use_sliding_window") and not unused:
        raise UnsupportedModel(
            f"{source} sets use_sliding_window to {quoted(text['use_sliding_window'])}, which "
            f"{module} models here do not support; it needs false. Use another model"
        )


def _spelled(neutral: tuple[Any, ...]) -> str:
    stated = [repr(value) for value in neutral if value]
    return " or ".join([*(["to be absent"] if None in neutral else []), *dict.fromkeys(stated)])
