"""Linear layers and embeddings that launch a kernel for verified blocks where one was selected.

Each class has the parameters of its MLX parent, and its behaviour for other numbers of rows.
"""

from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.kernels.choices import Choices
from dflash_mlx.kernels.rewrap import replace_layers, rewrap_layer
from dflash_mlx.metal.build import DEFAULT_DEVICE, Device
from dflash_mlx.metal.dense_verify import dense_launch
from dflash_mlx.metal.dense_verify import weight_reasons as dense_reasons
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.matrix_cases import Weight, matrix_name, weight_dtype
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_launch
from dflash_mlx.metal.quantized_verify import weight_reasons as quantized_reasons
from dflash_mlx.metal.refusal import FLOATS, first_reason


@dataclass(frozen=True)
class MatrixGroup:
    """All matrices of one shape and quantization in a model, and the choices they share.

    `dtype` is the type of the rows for which the choices hold.
    """

    name: str
    weights: tuple[Weight, ...]
    dtype: mx.Dtype
    choices: Choices[MatrixGeometry]


class _Chosen:
    """The choices and the device of a layer; not one of the module's parameters.

    Weights are checked once, when the layer is replaced. Launches skip these checks, which
    would take more host time per round than the launch itself.
    """

    def __init__(self, choices: Choices[MatrixGeometry], dtype: mx.Dtype, device: Device) -> None:
        self.choices = choices
        self.dtype = dtype
        self.device = device

    def geometry(self, x: mx.array) -> MatrixGeometry | None:
        """Return the geometry for rows x [..., K], or None for stock MLX."""
        return self.choices.at(x.size // x.shape[-1]) if x.dtype == self.dtype else None

    def product(self, x: mx.array, weight: Weight, geometry: MatrixGeometry) -> mx.array:
        """Return the product [..., N] of x [..., K], computed by the kernel."""
        flat = x.reshape(-1, x.shape[-1])
        if isinstance(weight, QuantizedWeight):
            launch = quantized_launch(flat, weight, geometry)
        else:
            launch = dense_launch(flat, weight, geometry)
        (y,) = self.device.run(launch)
        return y.reshape(*x.shape[:-1], -1)


class VerifyLinear(nn.Linear):
    """A linear layer that launches `dense_verify` for blocks where it was selected."""

    _chosen: _Chosen

    def __call__(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        geometry = self._chosen.geometry(x)
        if geometry is None:
            return super().__call__(x)
        y = self._chosen.product(x, self.weight, geometry)
        return _biased(y, self)


class VerifyQuantizedLinear(nn.QuantizedLinear):
    """A quantized linear layer that launches `quantized_verify` where it was selected."""

    _chosen: _Chosen

    def __call__(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        geometry = self._chosen.geometry(x)
        if geometry is None:
            stock: mx.array = super().__call__(x)
            return stock
        y = self._chosen.product(x, packed_weight(self), geometry)
        return _biased(y, self)


class VerifyEmbedding(nn.Embedding):
    """An embedding that is also the head of its model; the head launches `dense_verify`."""

    _chosen: _Chosen

    def as_linear(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        geometry = self._chosen.geometry(x)
        if geometry is None:
            stock: mx.array = super().as_linear(x)
            return stock
        weight: mx.array = self.weight
        return self._chosen.product(x, weight, geometry)


class VerifyQuantizedEmbedding(nn.QuantizedEmbedding):
    """A quantized embedding that is also a head; the head launches `quantized_verify`."""

    _chosen: _Chosen

    def as_linear(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        geometry = self._chosen.geometry(x)
        if geometry is None:
            stock: mx.array = super().as_linear(x)
            return stock
        return self._chosen.product(x, packed_weight(self), geometry)


OURS: Final[dict[type[nn.Module], type[nn.Module]]] = {
    nn.Linear: VerifyLinear,
    nn.QuantizedLinear: VerifyQuantizedLinear,
    nn.Embedding: VerifyEmbedding,
    nn.QuantizedEmbedding: VerifyQuantizedEmbedding,
}


_MLX: Final = {ours: kind for kind, ours in OURS.items()}
LINEARS: Final = (nn.Linear, nn.QuantizedLinear)


def replace_linears(
    model: nn.Module, *, embeddings: bool = True, device: Device | None = DEFAULT_DEVICE
) -> tuple[MatrixGroup, ...]:
    """Replace the linear layers of `model` by kernel layers; return their groups of equal shape.

    With `embeddings` an embedding is also a head and is replaced too. Layers that no kernel
    supports stay as they are. Without a device nothing is replaced.
    """
    if device is None:
        return ()
    groups: dict[str, tuple[list[Weight], mx.Dtype, Choices[MatrixGeometry]]] = {}
    widest = norm_dtype(model)
    replaced: list[tuple[str, nn.Module]] = []
    for path, layer in model.named_modules():
        weight = matrix_of(layer) if type(layer) in OURS else None
        if weight is None or not (embeddings or type(layer) in LINEARS):
            continue
        dtype = row_dtype(weight_dtype(weight), widest)
        if dtype not in FLOATS:
            continue
        weights, _, choices = groups.setdefault(matrix_name(weight), ([], dtype, Choices()))
        weights.append(weight)
        replaced.append((path, _replaced(layer, _Chosen(choices, dtype, device))))
    replace_layers(model, replaced)
    return tuple(
        MatrixGroup(name, tuple(weights), dtype, choices)
        for name, (weights, dtype, choices) in groups.items()
    )


def norm_dtype(model: nn.Module) -> mx.Dtype | None:
    """Return the widest type of the model's norms, or None without norms.

    A norm in float32 makes its output float32. GGUF files store norms in float32 and matrices
    in float16.
    """
    norms = [layer for _, layer in model.named_modules() if isinstance(layer, nn.RMSNorm)]
    types = [layer.weight.dtype for layer in norms if "weight" in layer]
    return mx.result_type(*types) if types else None


def row_dtype(weights: mx.Dtype, norms: mx.Dtype | None) -> mx.Dtype:
    """Return the type of the rows that a layer gets, which is also the type of its result.

    Rows of another type use stock MLX: the result of stock MLX then has another type, and the
    kernel was not checked for it.
    """
    return weights if norms is None else mx.result_type(weights, norms)


def packed_weight(layer: Any) -> QuantizedWeight:
    """Return the matrix of a quantized layer."""
    return QuantizedWeight(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)


def _replaced(layer: nn.Module, chosen: _Chosen) -> nn.Module:
    made: nn.Module = rewrap_layer(layer, OURS[type(layer)])
    made._chosen = chosen
    return made


def _biased(y: mx.array, layer: nn.Module) -> mx.array:
    """Return `y` plus the bias of a linear layer, if it has one."""
    bias: mx.array | None = layer.get("bias")
    return y if bias is None else y + bias


def matrix_of(layer: nn.Module) -> Weight | None:
    """Return the matrix of a linear layer or embedding, or None if no kernel supports it."""
    kind = _MLX.get(type(layer), type(layer))
    if kind in (nn.Linear, nn.Embedding):
        dense: mx.array = layer.weight
        return dense if first_reason(dense_reasons(dense, dense.shape[1])) is None else None
    if kind in (nn.QuantizedLinear, nn.QuantizedEmbedding) and layer.mode == "affine":
        packed = packed_weight(layer)
        inputs = packed.scales.shape[1] * packed.group_size
        return packed if first_reason(quantized_reasons(packed, inputs)) is None else None
    return None
