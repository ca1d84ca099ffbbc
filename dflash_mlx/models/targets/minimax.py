"""MiniMax M2 and later: full attention with norms over all heads at once, routed experts."""

from typing import ClassVar

from dflash_mlx.models.targets.decoder import DecoderTarget


class MiniMaxTarget(DecoderTarget):
    """An mlx-lm `minimax` model with taps; published ones call themselves `minimax_m2`."""

    model_types: ClassVar[tuple[str, ...]] = ("minimax", "minimax_m2")
