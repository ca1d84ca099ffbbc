"""Replaces layers of a loaded model by subclasses that launch kernels.

Uses `update_modules`, as `nn.quantize` does. No class of MLX or mlx-lm is changed.
"""

from collections.abc import Iterable
from typing import TypeVar

import mlx.nn as nn
from mlx.utils import tree_unflatten

Layer = TypeVar("Layer", bound=nn.Module)


def rewrap_layer(layer: nn.Module, ours: type[Layer]) -> Layer:
    """Return a layer of class `ours` with the same parameters, children and settings as `layer`."""
    made = ours.__new__(ours)
    nn.Module.__init__(made)
    for name, part in layer.items():
        made[name] = part
    for name, setting in vars(layer).items():
        if not name.startswith("_"):
            setattr(made, name, setting)
    made.train(layer.training)
    return made


def replace_layers(model: nn.Module, layers: Iterable[tuple[str, nn.Module]]) -> None:
    """Replace the module of `model` at each path by the given layer."""
    model.update_modules(tree_unflatten(list(layers)))
