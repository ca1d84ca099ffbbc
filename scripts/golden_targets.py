"""Golden taps: what the official feature extraction reads off small transformers targets.

`make_golden.py` calls this. Each family gets `tests/golden/targets/FAMILY/`:

    config.json, model.safetensors   a random target, float16, spelled as published targets are
    golden.safetensors               tokens [n], features [n, taps * hidden], logits [n, vocab]
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

TAPS = (1, 2)
"""Of four layers. Never the last: transformers gives that one's output only after the norm."""

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
FAMILIES = {
    "llama": {"tie_word_embeddings": True, "rope_scaling": LLAMA3},
    "qwen3": {"tie_word_embeddings": False},
    "qwen3_moe": {"tie_word_embeddings": False, **EXPERTS},
}


def write_targets(folder: Path) -> None:
    """Write every family's folder under `folder`."""
    for family, changes in FAMILIES.items():
        _write(folder / family, {"model_type": family, **SHAPE, **changes})


@torch.inference_mode()
def _write(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    random = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        value = 1 + 0.25 * noise if "norm" in name else noise / weight.shape[-1] ** 0.5
        weight.copy_(value.half())
    tokens = torch.randint(0, config["vocab_size"], (1, 40), generator=random)
    seen = model(tokens, output_hidden_states=True)
    with tempfile.TemporaryDirectory() as saved:
        model.half().save_pretrained(saved)
        shutil.copy(Path(saved) / "model.safetensors", folder)
    golden = {
        "tokens": tokens[0].int(),
        "features": extract_context_feature(seen.hidden_states, list(TAPS))[0].contiguous(),
        "logits": seen.logits[0].contiguous(),
    }
    save_file(golden, folder / "golden.safetensors", {"taps": json.dumps(TAPS)})
