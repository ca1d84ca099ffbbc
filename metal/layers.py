"""Linear layers that hand blocks of rows to the kernels where the gate chose them.

`exchange_linears` replaces the plain and quantized linear layers and embeddings of a model
that was just loaded, as quantization itself does, through `update_modules`. A layer of ours is
a layer of MLX with the same parameters under the same names; for row counts without a choice
it does what its parent does. Choices are shared by all layers of one shape and may be settled
later, between requests.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from dflash_mlx.metal.build import DEFAULT_DEVICE, Device
from dflash_mlx.metal.contests import Weight, matrix_name
from dflash_mlx.metal.dense_verify import dense_launch
from dflash_mlx.metal.dense_verify import weight_reasons as dense_reasons
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_launch
from dflash_mlx.metal.quantized_verify import weight_reasons as quantized_reasons
from dflash_mlx.metal.refusal import FLOATS, first_reason


@dataclass
class Choices:
    """Per number of rows, the geometry to launch for matrices of one shape."""

    geometries: dict[int, MatrixGeometry] = field(default_factory=dict)

    def settle(self, rows: range, geometry: MatrixGeometry | None) -> None:
        """Use `geometry` for every number of rows in `rows`; None is stock MLX."""
        for count in rows:
            if geometry is None:
                self.geometries.pop(count, None)
            else:
                self.geometries[count] = geometry


@dataclass(frozen=True)
class MatrixGroup:
    """All matrices of one shape and kind in a model, and the choices they share."""

    name: str
    weights: tuple[Weight, ...]
    choices: Choices


class _Chosen:
    """The choice of a layer; kept out of the module's parameters.

    Weights were seen to fit when the layer was exchanged, so launches skip the refusals: these
    would cost more Python time per round than all else here.
    """

    def __init__(self, choices: Choices, device: Device) -> None:
        self.choices = choices
        self.device = device

    def product(self, x: mx.array, weight: Weight) -> mx.array | None:
        """The product by kernel, or None where stock MLX was chosen."""
        inputs = x.shape[-1]
        rows = x.size // inputs
        geometry = self.choices.geometries.get(rows)
        if geometry is None or x.dtype not in FLOATS:
            return None
        flat = x.reshape(rows, inputs)
        if isinstance(weight, QuantizedWeight):
            launch = quantized_launch(flat, weight, geometry)
        else:
            launch = dense_launch(flat, weight, geometry)
        (y,) = self.device.run(launch)
        return y.reshape(*x.shape[:-1], -1)


class VerifyLinear(nn.Linear):
    """A linear layer; blocks of rows go to `dense_verify` where it was chosen."""

    def __call__(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y: mx.array | None = self._chosen.product(x, self.weight)
        if y is None:
            y = super().__call__(x)
        elif "bias" in self:
            y = y + self.bias
        return y


class VerifyQuantizedLinear(nn.QuantizedLinear):
    """A quantized linear layer; blocks of rows go to `quantized_verify` where it was chosen."""

    def __call__(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y: mx.array | None = self._chosen.product(x, packed_weight(self))
        if y is None:
            y = super().__call__(x)
        elif "bias" in self:
            y = y + self.bias
        return y


class VerifyEmbedding(nn.Embedding):
    """An embedding that is also the head of its model."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y: mx.array | None = self._chosen.product(x, self.weight)
        if y is None:
            y = super().as_linear(x)
        return y


class VerifyQuantizedEmbedding(nn.QuantizedEmbedding):
    """A quantized embedding that is also the head of its model."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y: mx.array | None = self._chosen.product(x, packed_weight(self))
        if y is None:
            y = super().as_linear(x)
        return y


OURS: Final[dict[type[nn.Module], type[nn.Module]]] = {
    nn.Linear: VerifyLinear,
    nn.QuantizedLinear: VerifyQuantizedLinear,
    nn.Embedding: VerifyEmbedding,
    nn.QuantizedEmbedding: VerifyQuantizedEmbedding,
}


def exchange_linears(
    model: nn.Module, *, device: Device | None = DEFAULT_DEVICE
) -> tuple[MatrixGroup, ...]:
    """Replace the linear layers of `model` by ours; the groups of equal shape that they form.

    Layers that no kernel can take stay as they are. Without a device nothing is replaced.
    """
    if device is None:
        return ()
    groups: dict[str, tuple[list[Weight], Choices]] = {}
    exchanged: list[tuple[str, nn.Module]] = []
    for path, layer in model.named_modules():
        weight = _weight(layer)
        if weight is None:
            continue
        weights, choices = groups.setdefault(matrix_name(weight), ([], Choices()))
        weights.append(weight)
        exchanged.append((path, _exchanged(layer, _Chosen(choices, device))))
    model.update_modules(tree_unflatten(exchanged))
    return tuple(
        MatrixGroup(name, tuple(weights), choices) for name, (weights, choices) in groups.items()
    )


def packed_weight(layer: Any) -> QuantizedWeight:
    """The matrix of a quantized layer."""
    return QuantizedWeight(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)


def _exchanged(layer: nn.Module, chosen: _Chosen) -> nn.Module:
    """A layer of ours with the very parameters and settings of `layer`."""
    ours = OURS[type(layer)]
    made = ours.__new__(ours)
    nn.Module.__init__(made)
    for name, array in layer.items():
        made[name] = array
    for name, setting in vars(layer).items():
        if not name.startswith("_"):
            setattr(made, name, setting)
    made._chosen = chosen
    made.freeze()
    return made


def _weight(layer: nn.Module) -> Weight | None:
    """The matrix of a layer if a kernel can take it, or None."""
    if type(layer) in (nn.Linear, nn.Embedding):
        dense: mx.array = layer.weight
        return dense if first_reason(dense_reasons(dense, dense.shape[1])) is None else None
    if type(layer) in (nn.QuantizedLinear, nn.QuantizedEmbedding) and layer.mode == "affine":
        packed = packed_weight(layer)
        inputs = packed.scales.shape[1] * packed.group_size
        return packed if first_reason(quantized_reasons(packed, inputs)) is None else None
    return None
