"""Which class runs which family of targets. A family without differences is one row here."""

from collections.abc import Mapping

from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.gemma import Gemma3Target, Gemma4Target
from dflash_mlx.models.targets.hybrid import Qwen3NextTarget, Qwen35Target
from dflash_mlx.models.targets.latent import LatentTarget, PairedLatentTarget
from dflash_mlx.models.targets.lfm2 import Lfm2Target
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES, check_supported
from dflash_mlx.models.targets.muse_glimmer import MuseGlimmerTarget
from dflash_mlx.models.targets.windowed import GptOssTarget, WindowedTarget

TARGET_CLASSES: Mapping[str, type[DecoderTarget]] = {
    # full attention in every layer; mixtures of experts differ only inside mlx-lm's layers
    "glm4_moe": DecoderTarget,
    "minimax": DecoderTarget,
    "qwen2": DecoderTarget,
    "qwen3": DecoderTarget,
    "qwen3_moe": DecoderTarget,
    # full and windowed attention
    "gemma3": Gemma3Target,
    "gemma3_text": Gemma3Target,
    "gemma4": Gemma4Target,
    "gemma4_text": Gemma4Target,
    "gpt_oss": GptOssTarget,
    "laguna": WindowedTarget,
    "llama": WindowedTarget,
    "muse_glimmer": MuseGlimmerTarget,
    # latent attention: one compressed row per token, or two
    "deepseek_v3": LatentTarget,
    "kimi_k25": LatentTarget,
    "glm_moe_dsa": PairedLatentTarget,
    "longcat_flash": PairedLatentTarget,
    # layers with a recurrent state or a short convolution
    "lfm2": Lfm2Target,
    "qwen3_5": Qwen35Target,
    "qwen3_5_moe": Qwen35Target,
    "qwen3_next": Qwen3NextTarget,
}
"""By mlx-lm module, see `MLX_LM_MODULES`."""


def family_of(model_type: str, source: str) -> type[DecoderTarget]:
    """Return the target class for a `model_type`; `source` is named in the error.

    Raises:
        UnsupportedModel: the family does not run here.
    """
    check_supported({"model_type": model_type}, source)
    return TARGET_CLASSES[MLX_LM_MODULES[model_type]]
