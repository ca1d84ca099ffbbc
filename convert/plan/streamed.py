"""A linear layer whose weight stays where it is and is read by row range at every use.

A layer of a large model in float32 is larger than all else that a conversion holds; read this
way it costs one chunk.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from dflash_mlx.convert.tensors import Rows, chunks, to_mlx


class StreamedLinear(nn.Module):
    """The product [..., out] of rows [..., in] with a weight [out, in], computed in `dtype`.

    `bias` [out] is the only parameter, where `linear` has one.
    """

    def __init__(self, linear: nn.Linear, weight: Rows, dtype: mx.Dtype) -> None:
        super().__init__()
        if "bias" in linear:
            self.bias = linear.bias
        self._rows = weight
        self._dtype = dtype

    def __call__(self, rows: mx.array) -> mx.array:
        """Return the layer's output, evaluated."""
        parts = []
        for start, stop in chunks(self._rows):
            parts.append(rows @ self._read(start, stop).T)
            mx.eval(parts[-1])  # or every chunk would stay until the last is used
        product = mx.concatenate(parts, axis=-1)
        return product + self.bias if "bias" in self else product

    @property
    def weight(self) -> mx.array:
        """The whole weight, for a family that asks for it."""
        return mx.concatenate([self._read(*chunk) for chunk in chunks(self._rows)])

    def _read(self, start: int, stop: int) -> mx.array:
        return to_mlx(self._rows.read(start, stop), self._rows.dtype).astype(self._dtype)


def put(layer: nn.Module, modules: dict[str, Any]) -> None:
    """Put modules into a layer, by their path in it."""
    layer.update_modules(tree_unflatten(list(modules.items())))
