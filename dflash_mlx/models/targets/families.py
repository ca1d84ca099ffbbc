"""Which file walks which family of targets."""

from collections.abc import Mapping
from typing import Any

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.deepseek_v3 import DeepseekV3Target
from dflash_mlx.models.targets.gemma3 import Gemma3Target
from dflash_mlx.models.targets.gemma4 import Gemma4Target
from dflash_mlx.models.targets.glm4_moe import Glm4MoeTarget
from dflash_mlx.models.targets.glm_moe_dsa import GlmMoeDsaTarget
from dflash_mlx.models.targets.gpt_oss import GptOssTarget
from dflash_mlx.models.targets.laguna import LagunaTarget
from dflash_mlx.models.targets.lfm2 import Lfm2Target
from dflash_mlx.models.targets.llama import LlamaTarget
from dflash_mlx.models.targets.longcat_flash import LongcatFlashTarget
from dflash_mlx.models.targets.minimax import MiniMaxTarget
from dflash_mlx.models.targets.muse_glimmer import MuseGlimmerTarget
from dflash_mlx.models.targets.qwen2 import Qwen2Target
from dflash_mlx.models.targets.qwen3 import Qwen3Target
from dflash_mlx.models.targets.qwen3_5 import Qwen35Target
from dflash_mlx.models.targets.qwen3_moe import Qwen3MoeTarget
from dflash_mlx.models.targets.qwen3_next import Qwen3NextTarget

FAMILIES: tuple[type[DecoderTarget], ...] = (
    DeepseekV3Target,
    Gemma3Target,
    Gemma4Target,
    Glm4MoeTarget,
    GlmMoeDsaTarget,
    GptOssTarget,
    LagunaTarget,
    Lfm2Target,
    LlamaTarget,
    LongcatFlashTarget,
    MiniMaxTarget,
    MuseGlimmerTarget,
    Qwen2Target,
    Qwen3Target,
    Qwen35Target,
    Qwen3MoeTarget,
    Qwen3NextTarget,
)


def family_of(model_type: str, source: str) -> type[DecoderTarget]:
    """Return the walk for a `config.json`'s `model_type`.

    Raises:
        UnsupportedModel: no file of ours walks that family.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = sorted(name for family in FAMILIES for name in family.model_types)
    raise UnsupportedModel(
        f"{source} is of family {model_type!r}; targets that work here: {', '.join(known)}"
    )


def is_supported(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` belongs to a family that is walked here."""
    return any(config.get("model_type") in family.model_types for family in FAMILIES)
