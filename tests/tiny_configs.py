"""One small configuration per family of targets, spelled as published `config.json` files are.

Vocabulary: 256 bytes, an end token, a mask token, a special token and padding. Sliding windows are
16 rows, so an answer exceeds them many times. Each token uses 2 of 4 experts.
"""

from typing import Any

END, MASK, MARK = 256, 257, 258

_DENSE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 260,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
_QWEN_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}

_SLIDING, _FULL = "sliding_attention", "full_attention"
_WINDOW = 16
_GATED_DELTA: dict[str, Any] = {
    "full_attention_interval": 3,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_QWEN_5: dict[str, Any] = {
    **{key: value for key, value in _DENSE.items() if key != "rope_theta"},
    **_GATED_DELTA,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
_QWEN_SHARED: dict[str, Any] = {**_QWEN_EXPERTS, "shared_expert_intermediate_size": 16}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
_GEMMA_3: dict[str, Any] = {
    **_DENSE,
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": 16,
    "rope_local_base_freq": 1000.0,
    "sliding_window": _WINDOW,
    "sliding_window_pattern": 3,
}
_GEMMA_4: dict[str, Any] = {
    **{key: value for key, value in _DENSE.items() if key != "rope_theta"},
    "model_type": "gemma4_text",
    "tie_word_embeddings": True,
    "num_hidden_layers": 4,
    "layer_types": [_SLIDING, _FULL] * 2,
    "sliding_window": _WINDOW,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 260,
    "final_logit_softcapping": 30.0,
    "use_double_wide_mlp": False,
}
_GEMMA_EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
}
_LATENT: dict[str, Any] = {
    **_DENSE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "attention_bias": False,
}
_GROUPED_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "n_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
_DEEPSEEK: dict[str, Any] = {
    **_LATENT,
    **_GROUPED_EXPERTS,
    "model_type": "deepseek_v3",
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_DENSE, "model_type": "llama", "tie_word_embeddings": True},
    "llama3": {**_DENSE, "model_type": "llama", "rope_scaling": _LLAMA3},
    "llama_windowed": {
        **_DENSE,
        "model_type": "llama",
        "layer_types": [_SLIDING, _FULL, _SLIDING],
        "sliding_window": _WINDOW,
    },
    "qwen2": {**_DENSE, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**_DENSE, "model_type": "qwen3"},
    "qwen3_moe": {**_DENSE, **_QWEN_EXPERTS, "model_type": "qwen3_moe"},
    "qwen3_5": {"model_type": "qwen3_5", "text_config": {**_QWEN_5, "model_type": "qwen3_5_text"}},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": {**_QWEN_5, **_QWEN_SHARED, "model_type": "qwen3_5_moe_text"},
    },
    "qwen3_next": {
        **_DENSE,
        **_GATED_DELTA,
        **_QWEN_SHARED,
        "model_type": "qwen3_next",
        "partial_rotary_factor": 0.5,
    },
    "gpt_oss": {
        **_DENSE,
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": [_SLIDING, _FULL] * 2,
        "sliding_window": _WINDOW,
        "rope_scaling": _YARN,
    },
    "gemma3_text": _GEMMA_3,
    "gemma3": {
        "model_type": "gemma3",
        "vocab_size": _DENSE["vocab_size"],
        "text_config": _GEMMA_3,
    },
    "gemma4_text": _GEMMA_4,
    "gemma4_small": {
        **_GEMMA_4,
        "attention_k_eq_v": False,
        "hidden_size_per_layer_input": 8,
        "use_double_wide_mlp": True,
    },
    "gemma4": {
        "model_type": "gemma4",
        "vocab_size": _DENSE["vocab_size"],
        "text_config": {**_GEMMA_4, **_GEMMA_EXPERTS, "num_kv_shared_layers": 0},
    },
    "muse_glimmer": {
        **_DENSE,
        "model_type": "muse_glimmer",
        "num_hidden_layers": 4,
        "sliding_window": _WINDOW,
        "layer_types": [_SLIDING] * 3 + [_FULL],
    },
    "laguna": {
        **{key: value for key, value in _DENSE.items() if key != "rope_theta"},
        "model_type": "laguna",
        "layer_types": [_SLIDING, _FULL, _SLIDING],
        "sliding_window": _WINDOW,
        "num_attention_heads_per_layer": [4, 2, 4],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "rope_parameters": {
            _FULL: {
                **{key: value for key, value in _YARN.items() if key != "truncate"},
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    },
    "glm4_moe": {
        **_DENSE,
        **_GROUPED_EXPERTS,
        "model_type": "glm4_moe",
        "rope_scaling": None,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    "minimax": {
        **_DENSE,
        "model_type": "minimax",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 0,
        "rotary_dim": 8,
    },
    "deepseek_v3": _DEEPSEEK,
    "kimi_k25": {"model_type": "kimi_k25", "text_config": _DEEPSEEK},
    "glm_moe_dsa": {
        **{key: value for key, value in _LATENT.items() if key != "rope_theta"},
        **_GROUPED_EXPERTS,
        "model_type": "glm_moe_dsa",
        "index_head_dim": 16,
        "index_n_heads": 4,
        "index_topk": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "longcat_flash": {
        **_LATENT,
        "model_type": "longcat_flash",
        "attention_method": "MLA",
        "num_layers": 2,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 16,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "zero_expert_type": "identity",
        "moe_topk": 2,
        "routed_scaling_factor": 1.5,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "lfm2": {
        **_DENSE,
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "conv", _FULL, "conv"],
    },
}
"""Configurations by name. A family can have several variants."""

PACKAGINGS = ("llama3", "qwen3_5_moe", "gemma3", "gemma4_text", "kimi_k25")
"""Configurations that run the same code as another; each has one long test only."""

PUBLISHED: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 260,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "block_size": 8,
    "num_target_layers": 3,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "dflash_config": {"mask_token_id": 257, "target_layer_ids": [0, 2]},
}
"""`tiny.draft_config` in the format of a published draft."""
