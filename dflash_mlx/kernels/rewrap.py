"""Putting a layer of ours in the place of one of a model that was just loaded.

As quantization does, through `update_modules`; no class and no module of others is changed.
"""

from collections.abc import Iterable
from typing import TypeVar

import mlx.nn as nn
from mlx.utils import tree_unflatten

Layer = TypeVar("Layer", bound=nn.Module)


def rewrap_layer(layer: nn.Module, ours: type[Layer]) -> Layer:
    """A layer of the class `ours` with the very parameters, children and settings of `layer`."""
    made = ours.__new__(ours)
    nn.Module.__init__(made)
    for name, part in layer.items():
        made[name] = part
    for name, setting in vars(layer).items():
        if not name.startswith("_"):
            setattr(made, name, setting)
    made.train(layer.training)
    return made


def put(model: nn.Module, layers: Iterable[tuple[str, nn.Module]]) -> None:
    """Put `layers` into `model`, each at its path."""
    model.update_modules(tree_unflatten(list(layers)))
