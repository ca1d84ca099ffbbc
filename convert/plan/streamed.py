"""A linear layer that reads its weight from the checkpoint by row range at every call.

One float32 layer of a large model needs more memory than the rest of a conversion.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from dflash_mlx.convert.tensors import Rows, chunks, to_mlx


class StreamedLinear(nn.Module):
    """Multiplies [..., in] by a weight [out, in] to [..., out], in `dtype`, one chunk at a time.

    The bias [out] of `linear`, if it has one, is the only parameter.
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
            mx.eval(parts[-1])  # otherwise every chunk stays in memory until the last is used
        product = mx.concatenate(parts, axis=-1)
        return product + self.bias if "bias" in self else product

    @property
    def weight(self) -> mx.array:
        """The whole weight, for families that read the attribute."""
        return mx.concatenate([self._read(*chunk) for chunk in chunks(self._rows)])

    def _read(self, start: int, stop: int) -> mx.array:
        return to_mlx(self._rows.read(start, stop), self._rows.dtype).astype(self._dtype)


def replace_modules(layer: nn.Module, modules: dict[str, Any]) -> None:
    """Replace modules of a layer; the keys are paths inside the layer."""
    layer.update_modules(tree_unflatten(list(modules.items())))
