"""The `model_type` values of targets that run here, and the mlx-lm module that reads each.

It must not import MLX: a folder is checked before anything heavy is loaded.
"""

from collections.abc import Mapping
from typing import Any

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.system.foreign import quoted

MLX_LM_MODULES: Mapping[str, str] = {
    "deepseek_v3": "deepseek_v3",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3_text",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4_text",
    "gemma4_unified": "gemma4",
    "glm4_moe": "glm4_moe",
    "glm_moe_dsa": "glm_moe_dsa",
    "gpt_oss": "gpt_oss",
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "kimi_k25",
    "laguna": "laguna",
    "lfm2": "lfm2",
    "llama": "llama",
    "longcat_flash": "longcat_flash",
    "minimax": "minimax",
    "minimax_m2": "minimax",
    "muse_glimmer": "muse_glimmer",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_moe": "qwen3_moe",
    "qwen3_next": "qwen3_next",
}
"""mlx-lm's name for each `model_type`; where the two differ, mlx-lm remaps the type itself."""


def is_supported(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` belongs to a family of targets that runs here."""
    model_type = config.get("model_type")
    return isinstance(model_type, str) and model_type in MLX_LM_MODULES


def check_supported(config: Mapping[str, Any], source: str) -> None:
    """Check that a `config.json` belongs to a supported family; `source` is named in the error.

    Raises:
        UnsupportedModel: the family does not run here.
    """
    if not is_supported(config):
        raise UnsupportedModel(
            f"{source} has model_type {quoted(config.get('model_type'))}; supported targets: "
            f"{', '.join(sorted(MLX_LM_MODULES))}. Use one of these"
        )
