"""Tuning cases of linear layers and of the head.

Checks use outliers and ragged sizes; chains use all weights of a shape in turn. Shapes: M rows,
K inputs, N outputs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.build import Device
from dflash_mlx.metal.dense_verify import BLOCK, dense_verify
from dflash_mlx.metal.dense_verify import KERNEL as DENSE
from dflash_mlx.metal.geometry import MatrixGeometry, matrix_geometries
from dflash_mlx.metal.head_argmax import KERNEL as HEAD
from dflash_mlx.metal.head_argmax import (
    Head,
    head_argmax,
    head_argmax_reference,
    head_geometries,
    head_logits,
)
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.metal.quantized_verify import KERNEL as QUANTIZED
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_verify
from dflash_mlx.metal.tuning_case import TimedWork, TuningCase

Weight = mx.array | QuantizedWeight

# Outputs that a check computes, the first and the last. Odd numbers leave ragged tiles.
CHECKED_HEAD: Final = 1037
CHECKED_TAIL: Final = 131
# Relative to the result: one unit in the last place (twice the rounding error of the type).
# Relative to |x||w|: float32 accumulation. The largest error in the executor is 1.6e-7 for
# matrices and 8.8e-7 for attention; a GPU may add in another order.
ROUNDING: Final = {mx.float32: 1e-6, mx.bfloat16: 2.0**-7, mx.float16: 2.0**-10}
ACCUMULATION: Final = 1e-5


def matrix_case(
    weights: Sequence[Weight], dtype: mx.Dtype, rows: range, device: Device
) -> TuningCase[MatrixGeometry]:
    """Return the case of `rows` rows of `dtype` and matrices of one shape and quantization.

    The check and the timing use the ends of `rows`, which all launch the same pipeline.
    """
    first = weights[0]
    outputs, inputs = weight_shape(first)
    part = first.group_size if isinstance(first, QuantizedWeight) else BLOCK
    kernel = QUANTIZED if isinstance(first, QuantizedWeight) else DENSE
    ends = [outlying(count, inputs, dtype) for count in (rows[0], rows[-1])]

    def check(geometry: MatrixGeometry) -> str | None:
        for x, piece in zip(ends, (_tail_of(first), _head_of(first)), strict=True):
            wrong = _difference(_ours(x, piece, device, geometry), x, piece)
            if wrong is not None:
                return wrong
        return None

    def timed(x: mx.array) -> TimedWork[MatrixGeometry]:
        def ours(geometry: MatrixGeometry, row: mx.array, step: int) -> mx.array:
            return _ours(row, weights[step % len(weights)], device, geometry)

        def stock(row: mx.array, step: int) -> mx.array:
            return stock_product(row, weights[step % len(weights)])

        return TimedWork(
            lambda geometry, steps: chain(x, steps, partial(ours, geometry)),
            lambda steps: chain(x, steps, stock),
        )

    return TuningCase(
        kernel.name,
        kernel.source_hash,
        f"{matrix_name(first)} x {span(rows)} rows of {dtype_name(dtype)}",
        matrix_geometries(rows[-1], outputs, inputs // part),
        check,
        [timed(x) for x in ends],
    )


def head_case(
    head: Head, dtype: mx.Dtype, rows: range, count: int, device: Device
) -> TuningCase[MatrixGeometry]:
    """Return the case of the `count` best tokens of `rows` rows of hidden states.

    The check and the timing use the ends of `rows`, which all launch the same pipelines.
    """
    _, inputs = weight_shape(head.weight)
    ends = [outlying(n, inputs, dtype) for n in (rows[0], rows[-1])]

    def check(geometry: MatrixGeometry) -> str | None:
        for x, weight in zip(ends, (_tail_of(head.weight), _head_of(head.weight)), strict=True):
            piece = Head(weight, head.scale, head.cap)
            best = head_argmax(x, piece, count, device=device, geometry=geometry)
            wrong = _head_difference(best, x, piece, count)
            if wrong is not None:
                return wrong
        return None

    def ours(geometry: MatrixGeometry, row: mx.array, step: int) -> mx.array:
        return head_argmax(row, head, count, device=device, geometry=geometry).logits

    def stock(row: mx.array, step: int) -> mx.array:
        logits = stock_product(row, head.weight)
        if count <= 2:
            return mx.argmax(logits, axis=-1)
        return mx.argpartition(logits, -count, axis=-1)[:, -count:]

    def timed(x: mx.array) -> TimedWork[MatrixGeometry]:
        return TimedWork(
            lambda geometry, steps: chain(x, steps, partial(ours, geometry)),
            lambda steps: chain(x, steps, stock),
        )

    return TuningCase(
        HEAD.name,
        HEAD.source_hash,
        f"{matrix_name(head.weight)} x {span(rows)} rows of {dtype_name(dtype)}, best {count}",
        head_geometries(ends[1], head),
        check,
        [timed(x) for x in ends],
    )


def weight_shape(weight: Weight) -> tuple[int, int]:
    """Return the outputs and inputs of a matrix."""
    if isinstance(weight, QuantizedWeight):
        return weight.packed.shape[0], weight.packed.shape[1] * 32 // weight.bits
    return weight.shape[0], weight.shape[1]


def weight_dtype(weight: Weight) -> mx.Dtype:
    """Return the type of the values of a matrix: that of its scales if it is quantized."""
    return weight.scales.dtype if isinstance(weight, QuantizedWeight) else weight.dtype


def matrix_name(weight: Weight) -> str:
    """Return the description of a matrix: `9728x2560 4-bit g64 bfloat16`."""
    outputs, inputs = weight_shape(weight)
    if isinstance(weight, QuantizedWeight):
        kind = f"{weight.bits}-bit g{weight.group_size} {dtype_name(weight.scales.dtype)}"
    else:
        kind = dtype_name(weight.dtype)
    return f"{outputs}x{inputs} {kind}"


def stock_product(x: mx.array, weight: Weight) -> mx.array:
    """Return the product of a linear layer, computed by stock MLX."""
    if isinstance(weight, QuantizedWeight):
        return mx.quantized_matmul(
            x,
            weight.packed,
            scales=weight.scales,
            biases=weight.biases,
            transpose=True,
            group_size=weight.group_size,
            bits=weight.bits,
        )
    return x @ weight.T


def outlying(rows: int, columns: int, dtype: mx.Dtype) -> mx.array:
    """Return fixed normal values with every 97th column 30 times as large."""
    values = mx.random.normal((rows, columns), key=mx.random.key(rows * columns))
    return mx.where(mx.arange(columns) % 97 == 5, values * 30, values).astype(dtype)


def _ours(x: mx.array, weight: Weight, device: Device, geometry: MatrixGeometry) -> mx.array:
    if isinstance(weight, QuantizedWeight):
        return quantized_verify(x, weight, device=device, geometry=geometry)
    return dense_verify(x, weight, device=device, geometry=geometry)


def _difference(ours: mx.array, x: mx.array, weight: Weight) -> str | None:
    """Return how `ours` differs from the product of `x` and `weight`, or None.

    The expected values are computed on the CPU: GPUs may shorten float32 products.
    """
    with mx.stream(mx.cpu):
        wide = x.astype(mx.float32)
        matrix = _expanded(weight)
        expected = wide @ matrix.T
        magnitude = mx.abs(wide) @ mx.abs(matrix).T
        error = mx.abs(ours.astype(mx.float32) - expected)
        allowed = ROUNDING[ours.dtype] * mx.abs(expected) + ACCUMULATION * magnitude
        if bool((error <= allowed).all().item()):
            return None
        worst, largest = error.max().item(), mx.abs(expected).max().item()
    return f"off by {worst:.3g}, largest value {largest:.3g}"


def _expanded(weight: Weight) -> mx.array:
    if not isinstance(weight, QuantizedWeight):
        return weight.astype(mx.float32)
    return mx.dequantize(
        weight.packed,
        weight.scales.astype(mx.float32),
        weight.biases.astype(mx.float32),
        weight.group_size,
        weight.bits,
    )


def _head_difference(best: BestTokens, x: mx.array, head: Head, count: int) -> str | None:
    """Return what is wrong with the `best` tokens, or None; tokens of near ties may differ."""
    with mx.stream(mx.cpu):
        wide = x.astype(mx.float32)
        expected = head_argmax_reference(wide, head, count)
        magnitude = (mx.abs(wide) @ mx.abs(_expanded(head.weight)).T).max()
        allowed = ACCUMULATION * magnitude * abs(head.scale)
        if not bool((mx.abs(best.logits - expected.logits) <= allowed).all().item()):
            return "the best logits differ"
        if not bool(
            (mx.abs(best.log_sum_exp - expected.log_sum_exp) <= 1e-3 + allowed).all().item()
        ):
            return "the log-sum-exp differs"
        listed = mx.take_along_axis(head_logits(wide, head), best.tokens, axis=-1)
        if not bool((mx.abs(listed - best.logits) <= allowed).all().item()):
            return "the best tokens differ"
    return None


def _head_of(weight: Weight) -> Weight:
    return outputs_of(weight, 0, min(CHECKED_HEAD, weight_shape(weight)[0]))


def _tail_of(weight: Weight) -> Weight:
    outputs, _ = weight_shape(weight)
    return outputs_of(weight, max(0, outputs - CHECKED_TAIL), outputs)


def outputs_of(weight: Weight, start: int, end: int) -> Weight:
    """Return the rows `start` to `end` of a matrix."""
    if isinstance(weight, QuantizedWeight):
        return QuantizedWeight(
            weight.packed[start:end],
            weight.scales[start:end],
            weight.biases[start:end],
            weight.group_size,
            weight.bits,
        )
    return weight[start:end]


def chain(x: mx.array, steps: int, call: Callable[[mx.array, int], mx.array]) -> mx.array:
    """Return a chain of `steps` calls on `x`, each depending on the one before."""
    row = x
    for step in range(steps):
        # Adds zero, so every call gets `x`, but the next call depends on this one.
        row = x + 0 * call(row, step).reshape(-1)[:1].astype(x.dtype)
    return row


def dtype_name(dtype: mx.Dtype) -> str:
    """Return the name of a type: `bfloat16` for mx.bfloat16."""
    return str(dtype).removeprefix("mlx.core.")


def span(numbers: range) -> str:
    """Return a range as text, with its last number: `6-8` for range(6, 9)."""
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
