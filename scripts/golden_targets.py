"""Golden hidden states: the official feature extraction on small transformers targets.

`make_golden.py` calls this. Each family gets `tests/golden/targets/FAMILY/`:

    config.json, model.safetensors   a random target, float16, with the keys of published targets
    golden.safetensors               tokens [n], features [n, layers * hidden], logits [n, vocab]
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from dflash.model import extract_context_feature
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

LAYERS = (1, 2)
"""Of four layers. Not the last, whose output transformers returns only after the norm."""

SHAPE = {
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 96,
}
EXPERTS = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}
WINDOW = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
GATED_DELTA = {
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "tie_word_embeddings": False,
}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 16}
PARTLY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
GROUPED = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True, "rope_scaling": LLAMA3},
    "qwen3": {"tie_word_embeddings": False},
    "qwen3_moe": {"tie_word_embeddings": False, **EXPERTS},
    "qwen3_5": {
        "text_config": {
            **{key: value for key, value in SHAPE.items() if key != "rope_theta"},
            **GATED_DELTA,
            "model_type": "qwen3_5_text",
            "rope_parameters": PARTLY,
        }
    },
    "qwen3_next": {**GATED_DELTA, **SHARED, "partial_rotary_factor": 0.5},
    "gemma3_text": {
        **WINDOW,
        "hidden_size": 64,  # its root is exact in bfloat16, to which mlx-lm rounds the scale
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
        "rope_local_base_freq": 1000.0,
    },
    "gemma4_text": {
        **WINDOW,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 96,
        "final_logit_softcapping": 30.0,
        "use_double_wide_mlp": False,
    },
    "glm4_moe": {
        **GROUPED,
        "rope_scaling": None,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
    },
}


def write_targets(folder: Path) -> None:
    """Write every family's folder under `folder`."""
    for family, changes in FAMILIES.items():
        shape = {} if "text_config" in changes else SHAPE
        _write(folder / family, {"model_type": family, **shape, **changes})


@torch.inference_mode()
def _write(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    text = config.get("text_config", config)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**text)).eval()
    random = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        value = noise / weight.shape[-1] ** 0.5
        if (
            "norm" in name
        ):  # multiples of 1/64, exact in float16 after the 1 that some families add on loading
            value = 1 + (16 * noise).round() / 64
        weight.copy_(value.half())
    tokens = torch.randint(0, text["vocab_size"], (1, 40), generator=random)
    output = model(tokens, output_hidden_states=True)
    with tempfile.TemporaryDirectory() as saved:
        model.half().save_pretrained(saved)
        shutil.copy(Path(saved) / "model.safetensors", folder)
    golden = {
        "tokens": tokens[0].int(),
        "features": extract_context_feature(output.hidden_states, list(LAYERS))[0].contiguous(),
        "logits": output.logits[0].contiguous(),
    }
    save_file(golden, folder / "golden.safetensors", {"taps": json.dumps(LAYERS)})
