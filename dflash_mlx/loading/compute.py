"""On which device the models run here, and in which precision.

On Metal weights stay as they are stored. MLX's CPU backend takes as long for n rows of a
quantized product as for n products, so there both models run dense in float32, the target as
`mx.dequantize` gives it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import dequantize_model


@dataclass(frozen=True)
class Compute:
    """`dense` models hold no quantized weight; `dtype` None keeps what is stored.

    `outline` models have all shapes and types and no values: no weight is read.
    """

    device: str
    dense: bool
    dtype: mx.Dtype | None
    outline: bool = False


def compute_here() -> Compute:
    """Return how models run on this machine."""
    if mx.metal.is_available():
        return Compute("metal", dense=False, dtype=None)
    return Compute("cpu", dense=True, dtype=mx.float32)


def without_half(weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return `weights` with float16 as bfloat16.

    Drafts overflow half precision: their logits turn into NaN and nothing is accepted.
    """
    return {
        name: array.astype(mx.bfloat16) if array.dtype == mx.float16 else array
        for name, array in weights.items()
    }


def settle_weights(model: nn.Module, compute: Compute) -> None:
    """Bring a lazily loaded model into memory as `compute` wants it, one tensor at a time.

    Each stored tensor is gone when its used form exists, so the peak is the stored and the used
    weights together, or less. An outline stays lazy.
    """
    if compute.dense:
        dequantize_model(model)
    # the largest first, while little else is held; a list would hold every dequantized form
    arrays = dict(sorted(parameters(model).items(), key=lambda item: item[1].nbytes))
    while arrays:
        name, array = arrays.popitem()
        floating = mx.issubdtype(array.dtype, mx.floating)
        used = array.astype(compute.dtype) if compute.dtype and floating else array
        del array
        if not compute.outline:
            mx.eval(used)
        model.update(tree_unflatten([(name, used)]))
    mx.clear_cache()


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters."""
    return sum(array.nbytes for array in parameters(model).values())


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """Return a model's parameters by path."""
    flat: Any = tree_flatten(model.parameters())  # MLX annotates a union of forms
    return dict(flat)
