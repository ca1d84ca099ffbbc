"""One small configuration per family of targets, spelled as published `config.json` files are.

Vocabulary: 256 bytes, an end token, a mask token, and padding. Windows are 16 rows, so that an
answer wraps them many times; experts are 4, of which 2 are taken.
"""

from typing import Any

END, MASK = 256, 257

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

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_DENSE, "model_type": "llama", "tie_word_embeddings": True},
    "llama3": {**_DENSE, "model_type": "llama", "rope_scaling": _LLAMA3},
    "qwen3": {**_DENSE, "model_type": "qwen3"},
    "qwen3_moe": {**_DENSE, **_QWEN_EXPERTS, "model_type": "qwen3_moe"},
}
"""By name; a family may have several variants, each with the `model_type` it is read as."""
