"""The device and the precision that models run in on this machine.

On Metal weights stay as stored. On the CPU both models run dense in float32, because MLX's CPU
backend computes a quantized product of n rows one row at a time.
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
    """How weights are held in memory.

    Args:
        device: "metal" or "cpu".
        dense: dequantize every weight.
        dtype: convert floating-point weights to this type; None keeps the stored types.
        outline: build the model with shapes and types only, and read no weight.
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


def float16_as_bfloat16(weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return `weights` with float16 converted to bfloat16.

    Activations of drafts exceed the range of float16: logits become NaN and no token is accepted.
    """
    return {
        name: array.astype(mx.bfloat16) if array.dtype == mx.float16 else array
        for name, array in weights.items()
    }


def settle_weights(model: nn.Module, compute: Compute) -> None:
    """Bring a lazily loaded model into memory as `compute` says, one tensor at a time.

    Each stored tensor is freed when its converted form exists, so the peak is at most the stored
    and the converted weights together. An outline stays lazy.
    """
    if compute.dense:
        dequantize_model(model)
    # largest first, while little else is in memory; a list would hold every dequantized form
    arrays = dict(sorted(parameters(model).items(), key=lambda item: item[1].nbytes))
    while arrays:
        name, array = arrays.popitem()
        floating = mx.issubdtype(array.dtype, mx.floating)
        converted = array.astype(compute.dtype) if compute.dtype and floating else array
        del array
        if not compute.outline:
            mx.eval(converted)
        model.update(tree_unflatten([(name, converted)]))
    mx.clear_cache()


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters."""
    return sum(array.nbytes for array in parameters(model).values())


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """Return a model's parameters by path."""
    flat: Any = tree_flatten(model.parameters())  # MLX annotates a union of forms
    return dict(flat)
