"""Qwen3.5, 3.6 and 3.8, dense and mixture of experts: three gated-delta layers to a full one."""

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx

from dflash_mlx.models.targets.gated_delta import Projected, project_apart
from dflash_mlx.models.targets.hybrid import HybridTarget


class Qwen35Target(HybridTarget):
    """An mlx-lm `qwen3_5` or `qwen3_5_moe` model with taps."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5", "qwen3_5_moe")
    project: ClassVar[Callable[[Any, mx.array], Projected]] = staticmethod(project_apart)
