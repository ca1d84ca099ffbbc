"""The contests of the gate: each kernel against what stock MLX does with the same inputs.

Every check uses outliers and ragged sizes; every chain walks over all weights that the model
has of a shape. Letters: M rows, K inputs, N outputs, L keys.
"""

from collections.abc import Callable, Sequence
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.attention_geometry import AttentionGeometry, attention_geometries
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.dense_verify import BLOCK, dense_verify
from dflash_mlx.metal.dense_verify import KERNEL as DENSE
from dflash_mlx.metal.gate import Contest
from dflash_mlx.metal.geometry import MatrixGeometry, matrix_geometries
from dflash_mlx.metal.quantized_verify import KERNEL as QUANTIZED
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_verify
from dflash_mlx.metal.verify_attention import KERNEL as ATTENTION
from dflash_mlx.metal.verify_attention import verify_attention, verify_attention_reference

Weight = mx.array | QuantizedWeight

# Outputs that a check computes: the first and the last ones, of ragged number.
CHECKED_HEAD: Final = 1037
CHECKED_TAIL: Final = 131
# Half a unit in the last place twice over, and what float32 accumulation may lose of |x||w|.
ROUNDING: Final = {mx.float32: 1e-6, mx.bfloat16: 2.0**-7, mx.float16: 2.0**-10}
ACCUMULATION: Final = 1e-5


def matrix_contest(
    weights: Sequence[Weight], dtype: mx.Dtype, rows: int, device: Device
) -> Contest[MatrixGeometry]:
    """Blocks of `rows` rows of `dtype` times matrices of one shape and quantization."""
    first = weights[0]
    outputs, inputs = weight_shape(first)
    part = first.group_size if isinstance(first, QuantizedWeight) else BLOCK
    kernel = QUANTIZED if isinstance(first, QuantizedWeight) else DENSE
    x = outlying(rows, inputs, dtype)

    def check(geometry: MatrixGeometry) -> str | None:
        head = _outputs(first, 0, min(CHECKED_HEAD, outputs))
        tail = _outputs(first, max(0, outputs - CHECKED_TAIL), outputs)
        for fewer, piece in ((x, head), (x[: max(2, rows - 1)], tail), (x[:2], tail)):
            wrong = _difference(_ours(fewer, piece, device, geometry), fewer, piece)
            if wrong is not None:
                return wrong
        return None

    return Contest(
        kernel.name,
        kernel.source_hash,
        f"{matrix_name(first)} x {rows} rows of {_dtype_name(dtype)}",
        matrix_geometries(rows, outputs, inputs // part),
        check,
        lambda geometry, steps: _chain(
            x, weights, steps, lambda row, w: _ours(row, w, device, geometry)
        ),
        lambda steps: _chain(x, weights, steps, stock_product),
    )


def attention_contest(
    heads: tuple[int, int], size: int, dtype: mx.Dtype, rows: int, keys: int, device: Device
) -> Contest[AttentionGeometry]:
    """`rows` rows of `heads` = (query heads, KV heads) over caches of `keys` keys."""
    query_heads, groups = heads
    scale = size**-0.5
    q = _normal((1, query_heads, rows, size), dtype)
    # Four layers' caches in turn, as a model would walk them.
    caches = [
        (_normal((1, groups, keys, size), dtype), _normal((1, groups, keys, size), dtype))
        for _ in range(4)
    ]

    def check(geometry: AttentionGeometry) -> str | None:
        for n_keys, window in ((keys, None), (keys - 3, None), (keys, max(1, keys // 3))):
            k, v = (array[:, :, :n_keys] for array in caches[0])
            out = verify_attention(q, k, v, scale, window=window, device=device, geometry=geometry)
            with mx.stream(mx.cpu):
                wide = q.astype(mx.float32)
                truth = verify_attention_reference(wide, k, v, scale, window)
                error = mx.abs(out.astype(mx.float32) - truth).max()
                allowed = (ROUNDING[dtype] + ACCUMULATION) * mx.abs(truth).max()
                right = bool((error <= allowed).item())
            if not right:
                return (
                    f"off by {error.item():.3g} at {n_keys} keys, {allowed.item():.3g} is allowed"
                )
        return None

    def ours(geometry: AttentionGeometry, steps: int) -> mx.array:
        return _attention_chain(
            q,
            caches,
            steps,
            lambda q, k, v: verify_attention(q, k, v, scale, device=device, geometry=geometry),
        )

    return Contest(
        ATTENTION.name,
        ATTENTION.source_hash,
        f"{query_heads}/{groups} heads of {size} x {rows} rows of {_dtype_name(dtype)}, "
        f"{keys} keys",
        attention_geometries(size, dtype, rows * query_heads // groups),
        check,
        ours,
        lambda steps: _attention_chain(
            q,
            caches,
            steps,
            lambda q, k, v: mx.fast.scaled_dot_product_attention(
                q, k, v, scale=scale, mask="causal"
            ),
        ),
    )


def weight_shape(weight: Weight) -> tuple[int, int]:
    """Outputs and inputs of a matrix."""
    if isinstance(weight, QuantizedWeight):
        return weight.packed.shape[0], weight.packed.shape[1] * 32 // weight.bits
    return weight.shape[0], weight.shape[1]


def matrix_name(weight: Weight) -> str:
    """A matrix in words: `9728x2560 4-bit g64 bfloat16`."""
    outputs, inputs = weight_shape(weight)
    if isinstance(weight, QuantizedWeight):
        kind = f"{weight.bits}-bit g{weight.group_size} {_dtype_name(weight.scales.dtype)}"
    else:
        kind = _dtype_name(weight.dtype)
    return f"{outputs}x{inputs} {kind}"


def stock_product(x: mx.array, weight: Weight) -> mx.array:
    """What stock MLX computes for a linear layer."""
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
    """Normal values of which every 97th column is 30 times as large, always the same."""
    values = mx.random.normal((rows, columns), key=mx.random.key(rows * columns))
    return mx.where(mx.arange(columns) % 97 == 5, values * 30, values).astype(dtype)


def _ours(x: mx.array, weight: Weight, device: Device, geometry: MatrixGeometry) -> mx.array:
    if isinstance(weight, QuantizedWeight):
        return quantized_verify(x, weight, device=device, geometry=geometry)
    return dense_verify(x, weight, device=device, geometry=geometry)


def _difference(ours: mx.array, x: mx.array, weight: Weight) -> str | None:
    """What is wrong with `ours` as the product of `x` and `weight`, or None.

    The truth comes from the CPU, whose float32 products are not shortened on any machine.
    """
    with mx.stream(mx.cpu):
        wide = x.astype(mx.float32)
        matrix = _expanded(weight)
        truth = wide @ matrix.T
        magnitude = mx.abs(wide) @ mx.abs(matrix).T
        error = mx.abs(ours.astype(mx.float32) - truth)
        allowed = ROUNDING[ours.dtype] * mx.abs(truth) + ACCUMULATION * magnitude
        if bool((error <= allowed).all().item()):
            return None
        worst, greatest = error.max().item(), mx.abs(truth).max().item()
    return f"off by {worst:.3g} where values reach {greatest:.3g}"


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


def _outputs(weight: Weight, start: int, end: int) -> Weight:
    """The rows `start` to `end` of a matrix."""
    if isinstance(weight, QuantizedWeight):
        return QuantizedWeight(
            weight.packed[start:end],
            weight.scales[start:end],
            weight.biases[start:end],
            weight.group_size,
            weight.bits,
        )
    return weight[start:end]


def _chain(
    x: mx.array,
    weights: Sequence[Weight],
    steps: int,
    product: Callable[[mx.array, Weight], mx.array],
) -> mx.array:
    row = x
    for step in range(steps):
        y = product(row, weights[step % len(weights)])
        # Adds nothing, but makes the next product wait for this one.
        row = x + 0 * y[:, :1]
    return row


def _attention_chain(
    q: mx.array,
    caches: Sequence[tuple[mx.array, mx.array]],
    steps: int,
    attend: Callable[[mx.array, mx.array, mx.array], mx.array],
) -> mx.array:
    rows = q
    for step in range(steps):
        rows = q + 0 * attend(rows, *caches[step % len(caches)])
    return rows


def _normal(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(shape[-1])).astype(dtype)


def _dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
