"""GLM-4.5 to 4.7: full attention over part of each head, routed and shared experts."""

from typing import ClassVar

from dflash_mlx.models.targets.decoder import DecoderTarget


class Glm4MoeTarget(DecoderTarget):
    """An mlx-lm `glm4_moe` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("glm4_moe",)
