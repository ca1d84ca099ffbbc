"""The draft's rotary embedding, as transformers computes it, with which drafts are trained.

mlx-lm's YaRN reads neither `truncate` nor `attention_factor`, so YaRN is implemented here.
Source: transformers 5.15.0, `modeling_rope_utils._compute_yarn_parameters`; arXiv 2309.00071.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.rope_utils import initialize_rope

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.rope_config import ALL_LAYERS, read_rope, yarn_attention_factor
from dflash_mlx.system.foreign import quoted

Rotation = Callable[..., mx.array]
"""Rotates [1, heads, n, head size] by position; `offset` is the position of the first row."""

_KINDS = ("default", "linear", "llama3", "yarn")


def make_rotation(config: DraftConfig) -> Rotation:
    """Return the rotary embedding that `config` describes.

    Raises:
        UnsupportedModel: the configuration asks for a kind that is not implemented.
    """
    stored = {
        "rope_scaling": config.rope_scaling,
        "max_position_embeddings": config.max_position_embeddings,
    }
    rope = read_rope(stored, "the draft").get(ALL_LAYERS)
    if rope is None or rope.kind not in _KINDS:
        raise UnsupportedModel(
            f"the draft's rope_scaling is {quoted(config.rope_scaling)}; supported are one table "
            f"for all layers and the rope_types {', '.join(_KINDS)}. Use another draft, or --draft "
            "none"
        )
    if rope.partial_rotary_factor not in (None, 1.0):
        raise UnsupportedModel(
            f"the draft's partial_rotary_factor is {rope.partial_rotary_factor}; it needs 1.0. Use "
            "another draft, or --draft none"
        )
    if rope.kind == "yarn":
        periods = yarn_periods(
            config.head_dim, config.rope_theta, rope.scaling["factor"], rope.scaling
        )
        return _Yarn(periods, yarn_attention_factor(rope.scaling))
    rotation: Rotation = initialize_rope(
        config.head_dim, config.rope_theta, False, rope.table(), config.max_position_embeddings
    )
    return rotation


class _Yarn:
    """Rotation with given periods; vectors are scaled by the attention factor first."""

    def __init__(self, periods: np.ndarray, factor: float) -> None:
        self._periods = mx.array(periods, mx.float32)
        self._factor = factor

    def __call__(self, rows: mx.array, offset: int) -> mx.array:
        """Return `rows` [1, heads, n, head size] rotated, the first row at `offset`."""
        return mx.fast.rope(
            rows * self._factor,
            2 * len(self._periods),
            traditional=False,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._periods,
        )


def yarn_periods(
    head_dim: int, theta: float, factor: float, scaling: Mapping[str, Any]
) -> np.ndarray:
    """Return the periods [head_dim / 2] of the rotary planes, in positions per radian.

    Fast planes keep their period, slow planes are stretched by `factor`. Between `beta_fast` and
    `beta_slow` turns within the original length the two are interpolated.
    """
    original = scaling["original_max_position_embeddings"]

    def plane(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = plane(scaling.get("beta_fast") or 32)
    high = plane(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # avoids a division by zero
    stretched = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0, 1)
    period = theta ** (np.arange(0, head_dim, 2) / head_dim)
    blended: np.ndarray = 1 / ((1 - stretched) / period + stretched / (factor * period))
    return blended
