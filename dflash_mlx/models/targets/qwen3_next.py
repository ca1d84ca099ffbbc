"""Qwen3-Next and Qwen3-Coder-Next: as Qwen3.5, with fused projections and routed experts."""

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx

from dflash_mlx.models.targets.gated_delta import Projected, project_fused
from dflash_mlx.models.targets.hybrid import HybridTarget


class Qwen3NextTarget(HybridTarget):
    """An mlx-lm `qwen3_next` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_next",)
    project: ClassVar[Callable[[Any, mx.array], Projected]] = staticmethod(project_fused)
