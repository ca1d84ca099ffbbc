"""Tensors from files into a module: every name used exactly once, every shape as declared.

A path with `.scales` beside its weight is quantized, whatever the configuration says of the
others, so partly quantized checkpoints load as they are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from dflash_mlx.errors import BadCheckpoint


def read_safetensors(folder: Path) -> dict[str, mx.array]:
    """Return all tensors of a folder's `model*.safetensors`, lazily.

    Raises:
        BadCheckpoint: there are none, or one is truncated or malformed.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise BadCheckpoint(f"{folder} holds no model*.safetensors; fetch the model again")
    tensors: dict[str, mx.array] = {}
    for file in files:
        try:
            read: Any = mx.load(str(file))  # a dictionary, for this format
            tensors.update(read)
        except (RuntimeError, ValueError) as error:
            raise BadCheckpoint(f"{file} is not readable ({error}); fetch it again") from error
    return tensors


def fill(
    module: nn.Module,
    weights: Mapping[str, mx.array],
    source: str,
    quantization: Mapping[str, Any] | None = None,
) -> None:
    """Put `weights` into `module`, its layers quantized where the weights are.

    `quantization` may name a path's parameters, as mlx-lm's configurations do; paths it does not
    name are inferred from the shapes.

    Raises:
        BadCheckpoint: a tensor is missing, left over, or of another shape.
    """
    named = quantization or {}
    reading = ""

    def parameters(path: str, layer: nn.Module) -> Any:
        nonlocal reading
        reading = path
        if not hasattr(layer, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return named.get(path) or infer_quant_config(path, layer, dict(weights))

    try:
        nn.quantize(module, class_predicate=parameters)
    except (KeyError, ValueError) as error:
        raise BadCheckpoint(
            f"{source}: the quantization of {reading} cannot be read: {error}"
        ) from error
    _check(dict(tree_flatten(module.parameters())), weights, source)
    module.load_weights(list(weights.items()))
    module.eval()


def _check(wanted: Mapping[str, mx.array], weights: Mapping[str, mx.array], source: str) -> None:
    missing = sorted(wanted.keys() - weights.keys())
    extra = sorted(weights.keys() - wanted.keys())
    if missing or extra:
        parts = [f"lacks {_few(missing)}"] if missing else []
        parts += [f"has no place for {_few(extra)}"] if extra else []
        raise BadCheckpoint(
            f"{source} {' and '.join(parts)}; the files do not match their config.json"
        )
    for name, array in weights.items():
        if wanted[name].shape != array.shape:
            raise BadCheckpoint(
                f"{source}: {name} has shape {array.shape}, its config.json means "
                f"{wanted[name].shape}; the files do not match their config.json"
            )


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
