"""Linear layers and embeddings that launch a kernel for verified blocks where one was selected.

Each class has the parameters of its MLX parent, and its behaviour for other numbers of rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.kernels.choices import Choices
from dflash_mlx.kernels.rewrap import replace_layers, rewrap_layer
from dflash_mlx.metal.build import DEFAULT_DEVICE, Device, prepare
from dflash_mlx.metal.dense_verify import KERNEL as DENSE
from dflash_mlx.metal.dense_verify import dense_plan
from dflash_mlx.metal.dense_verify import weight_reasons as dense_reasons
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.matrix_cases import Weight, matrix_name, weight_dtype
from dflash_mlx.metal.quantized_verify import KERNEL as QUANTIZED
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_plan
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


@dataclass(frozen=True)
class _PreparedLaunch:
    """A launch without its rows: the function to call and the arrays of the weight."""

    call: Callable[..., Sequence[mx.array]]
    arrays: tuple[mx.array, ...]
    scales: mx.array | None

    def is_for(self, layer: nn.Module) -> bool:
        """Whether the arrays are still those of `layer`, whose parameters may be replaced."""
        return layer["weight"] is self.arrays[0] and layer.get("scales") is self.scales


class _LinearKernel:
    """The kernel of one linear layer, with a prepared launch per shape of its rows.

    Preparing takes the host time of several launches, and a verified block launches hundreds.
    Weights are checked once, when the layer is replaced. `dtype` is the type of the rows for
    which the choices hold.
    """

    def __init__(self, choices: Choices[MatrixGeometry], dtype: mx.Dtype, device: Device) -> None:
        self.choices = choices
        self.dtype = dtype
        self.device = device
        self._prepared: dict[tuple[int, ...], _PreparedLaunch] = {}
        self._geometries = choices.geometries

    def product(self, x: mx.array, layer: nn.Module) -> mx.array | None:
        """Return the result [..., N] of a linear layer for x [..., K].

        Returns None where stock MLX was selected for the number or the type of the rows.
        """
        if self._geometries is not self.choices.geometries:
            self._geometries = self.choices.geometries
            self._prepared.clear()
        shape = x.shape
        prepared = self._prepared.get(shape) or self._prepare(shape, layer)
        if prepared is None or x.dtype != self.dtype:
            return None
        if not prepared.is_for(layer):
            prepared = self._prepare(shape, layer)
            if prepared is None:
                return None
        (y,) = prepared.call(inputs=[x, *prepared.arrays])
        return y + layer["bias"] if "bias" in layer else y

    def _prepare(self, shape: tuple[int, ...], layer: Any) -> _PreparedLaunch | None:
        """Prepare the launch for rows of `shape`, or return None for stock MLX."""
        *batch, rows, _ = shape
        geometry = self.choices.at(rows)
        if geometry is None or math.prod(batch) != 1:
            return None
        weight = layer["weight"]
        arrays: tuple[mx.array, ...] = (weight,)
        if "scales" in layer:
            scales, n_outputs = layer["scales"], weight.shape[0]
            arrays = (weight, scales, layer["biases"])
            size = (rows, n_outputs, layer.group_size, layer.bits)
            kernel, plan = QUANTIZED, quantized_plan(self.dtype, scales.dtype, *size, geometry)
        else:
            kernel, plan = (
                DENSE,
                dense_plan(self.dtype, weight.dtype, rows, weight.shape[0], geometry),
            )
        plan = plan._replace(output_shapes=((*shape[:-1], weight.shape[0]),))
        call = prepare(self.device, kernel, plan)
        prepared = _PreparedLaunch(call, arrays, layer.get("scales"))
        self._prepared[shape] = prepared
        return prepared


class VerifyLinear(nn.Linear):
    """A linear layer that launches `dense_verify` for blocks where it was selected."""

    _kernel: _LinearKernel

    def __call__(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y = self._kernel.product(x, self)
        return super().__call__(x) if y is None else y


class VerifyQuantizedLinear(nn.QuantizedLinear):
    """A quantized linear layer that launches `quantized_verify` where it was selected."""

    _kernel: _LinearKernel

    def __call__(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y = self._kernel.product(x, self)
        if y is not None:
            return y
        stock: mx.array = super().__call__(x)
        return stock


class VerifyEmbedding(nn.Embedding):
    """An embedding that is also the head of its model; the head launches `dense_verify`."""

    _kernel: _LinearKernel

    def as_linear(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y = self._kernel.product(x, self)
        return super().as_linear(x) if y is None else y


class VerifyQuantizedEmbedding(nn.QuantizedEmbedding):
    """A quantized embedding that is also a head; the head launches `quantized_verify`."""

    _kernel: _LinearKernel

    def as_linear(self, x: mx.array) -> mx.array:
        """Map x [..., K] to [..., N]."""
        y = self._kernel.product(x, self)
        return super().as_linear(x) if y is None else y


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
        replaced.append((path, _replaced(layer, _LinearKernel(choices, dtype, device))))
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


def _replaced(layer: nn.Module, kernel: _LinearKernel) -> nn.Module:
    made: nn.Module = rewrap_layer(layer, OURS[type(layer)])
    made._kernel = kernel
    return made


def matrix_of(layer: Any) -> Weight | None:
    """Return the matrix of a linear layer or embedding, or None if no kernel supports it."""
    kind = _MLX.get(type(layer), type(layer))
    if kind not in OURS or weight_refusal(layer) is not None:
        return None
    return packed_weight(layer) if "scales" in layer else layer.weight


def weight_refusal(layer: Any) -> str | None:
    """Return why no kernel supports the matrix of a linear layer or embedding, or None."""
    if "scales" not in layer:
        return first_reason(dense_reasons(layer.weight, layer.weight.shape[1]))
    if layer.mode != "affine":
        return f"the quantization mode is {layer.mode}; affine is needed"
    packed = packed_weight(layer)
    return first_reason(quantized_reasons(packed, packed.scales.shape[1] * packed.group_size))
