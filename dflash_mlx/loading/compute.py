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
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import dequantize_model

from dflash_mlx.config import ComputeDType
from dflash_mlx.errors import UnsupportedModel


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


def compute_here(dtype: ComputeDType = "auto") -> Compute:
    """Return how models run on this machine with the given compute dtype.

    On a CPU, "float32" also dequantizes the weights, as "auto" does. On Metal it keeps quantized
    weights quantized.
    """
    metal = mx.metal.is_available()
    device = "metal" if metal else "cpu"
    if dtype == "stored" or (dtype == "auto" and metal):
        return Compute(device, dense=False, dtype=None)
    return Compute(device, dense=not metal, dtype=mx.float32)


def check_compute(model: nn.Module, compute: Compute, source: str) -> None:
    """Raise UnsupportedModel if MLX cannot compute `model` as `compute` says.

    MLX's CPU backend multiplies the weights of routed experts in float32 only.
    """
    if compute.device != "cpu" or compute.dtype is not None:
        return
    for name, module in model.named_modules():
        if isinstance(module, SwitchLinear) and module.weight.dtype != mx.float32:
            raise UnsupportedModel(
                f"{source} stores the experts of {name} in {str(module.weight.dtype)[9:]} and "
                "dtype is stored; on a CPU, MLX computes experts in float32 only; use dtype "
                "float32 (--dtype float32)"
            )


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
