"""Lists the layers of a model that stay with stock MLX because no kernel supports them.

It must not know how a kernel is selected.
"""

from collections import Counter
from typing import Any

import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from dflash_mlx.kernels.attention import KernelDraftAttention, VerifyAttention
from dflash_mlx.kernels.autotuner import TuningResult
from dflash_mlx.kernels.layers import LINEARS, weight_refusal

_KERNEL_ATTENTION = (VerifyAttention, KernelDraftAttention)


def unsupported_layers(model: nn.Module) -> list[TuningResult[object]]:
    """Return one result per kind of unsupported layer of `model`, with the reason.

    Call it after layers were replaced. The shape of a result names the kind and the number of
    layers.
    """
    found: Counter[tuple[str, str, str]] = Counter()
    for _, layer in model.named_modules():
        if (reason := _reason(layer)) is not None:
            found[reason] += 1
    return [
        TuningResult(kernel, f"{count} layers, {kind}", None, f"not supported: {reason}")
        for (kernel, kind, reason), count in found.items()
    ]


def _reason(layer: Any) -> tuple[str, str, str] | None:
    """Return the kernel, the kind of layer and the reason, or None for a supported layer."""
    kind = type(layer).__name__
    if isinstance(layer, (SwitchLinear, QuantizedSwitchLinear)):
        return "quantized_verify", kind, "experts use the gather operations of MLX"
    if isinstance(layer, LINEARS) and (refusal := weight_refusal(layer)) is not None:
        quantized = isinstance(layer, nn.QuantizedLinear)
        return "quantized_verify" if quantized else "dense_verify", kind, refusal
    if kind.endswith("Attention") and not isinstance(layer, _KERNEL_ATTENTION):
        return "verify_attention", kind, "this class of attention, or its head size, has no kernel"
    return None
