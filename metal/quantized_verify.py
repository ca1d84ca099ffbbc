"""Product of the rows of a verified block and an affine-quantized matrix.

Each weight is read once. Shapes: M rows, K inputs, N outputs, G values per group.
Kernel: quantized_verify.metal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.build import DEFAULT_DEVICE, Device, Launch, LaunchPlan, read_kernel
from dflash_mlx.metal.geometry import MatrixGeometry, matrix_geometries
from dflash_mlx.metal.refusal import (
    first_reason,
    float_refusal,
    rank_refusal,
    refuse,
    rows_refusal,
    shape_refusal,
    size_refusal,
)

MAX_ROWS: Final = 32
BITS: Final = (2, 3, 4, 5, 6, 8)
GROUPS: Final = (32, 64, 128)

KERNEL: Final = read_kernel("quantized_verify", ("x", "w", "scales", "biases"), ("y",))


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix [N, K] in the affine format of `mx.quantize`.

    `packed` is uint32 [N, K * bits / 32]; `scales` and `biases` are [N, K / group_size].
    """

    packed: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int


def quantized_verify_reference(x: mx.array, weight: QuantizedWeight) -> mx.array:
    """Return x [M, K] times the dequantized weight, transposed: [M, N] in x's dtype.

    The weight is dequantized and the product accumulated in float32.
    """
    full = mx.dequantize(
        weight.packed,
        weight.scales.astype(mx.float32),
        weight.biases.astype(mx.float32),
        weight.group_size,
        weight.bits,
    )
    return (x.astype(mx.float32) @ full.T).astype(x.dtype)


def quantized_verify_refusal(x: mx.array, weight: QuantizedWeight) -> str | None:
    """Return why the kernel does not support these inputs, or None."""
    return first_reason(_reasons(x, weight))


def quantized_verify(
    x: mx.array,
    weight: QuantizedWeight,
    *,
    device: Device | None = DEFAULT_DEVICE,
    geometry: MatrixGeometry | None = None,
) -> mx.array:
    """Return x [M, K] times the dequantized weight, transposed: [M, N] in x's dtype.

    Raises BadRequest for inputs that the kernel does not support.
    """
    refuse("quantized_verify", quantized_verify_refusal(x, weight))
    if device is None:
        return quantized_verify_reference(x, weight)
    rows, columns = x.shape[0], weight.packed.shape[0]
    parts = x.shape[1] // weight.group_size
    chosen = geometry or matrix_geometries(rows, columns, parts)[0]
    group, bits = weight.group_size, weight.bits
    plan = quantized_plan(x.dtype, weight.scales.dtype, rows, columns, group, bits, chosen)
    inputs = (x, weight.packed, weight.scales, weight.biases)
    (y,) = device.run(Launch(KERNEL, inputs, *plan))
    return y


@cache
def quantized_plan(
    dtype: mx.Dtype,
    scales: mx.Dtype,
    rows: int,
    columns: int,
    group_size: int,
    bits: int,
    geometry: MatrixGeometry,
) -> LaunchPlan:
    """Return the launch for supported x [M, K] of `dtype` and a weight [N, K]."""
    threads = 32 * geometry.slices
    return LaunchPlan(
        template=(
            ("T", dtype),
            ("S", scales),
            ("BITS", bits),
            ("GROUP", group_size),
            ("KB", block_of(rows, group_size)),
            ("NT", geometry.column_tiles),
            ("MT", -(-rows // 8)),
            ("SLICES", geometry.slices),
        ),
        grid=(threads, -(-columns // (8 * geometry.column_tiles)), 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((rows, columns),),
        output_dtypes=(dtype,),
    )


def block_of(rows: int, group_size: int) -> int:
    """Return the number of values of K that a simdgroup reads at a time.

    Above 16 rows, 64 values of each row do not fit in registers together with the results.
    """
    return 64 if rows <= 16 and group_size >= 64 else 32


def _reasons(x: mx.array, weight: QuantizedWeight) -> Iterator[str | None]:
    yield rank_refusal("x", x, "M K")
    yield float_refusal("x", x)
    yield rows_refusal(x.shape[0], 2, MAX_ROWS)
    yield from weight_reasons(weight, x.shape[1])


def weight_reasons(weight: QuantizedWeight, inputs: int) -> Iterator[str | None]:
    """Yield why a kernel does not support `weight` with `inputs` columns, or None."""
    group, bits = weight.group_size, weight.bits
    if bits not in BITS:
        yield f"weights have {bits} bits; one of {BITS} is needed"
    if group not in GROUPS:
        yield f"group_size is {group}; one of {GROUPS} is needed"
    if inputs % group:
        yield f"K is {inputs}; a multiple of the group size, {group}, is needed"
    yield rank_refusal("w", weight.packed, "N K*bits/32")
    if weight.packed.dtype != mx.uint32:
        yield f"w is {weight.packed.dtype}; uint32 is needed"
    outputs = weight.packed.shape[0]
    yield shape_refusal("w", weight.packed, (outputs, inputs * bits // 32))
    for name, array in (("scales", weight.scales), ("biases", weight.biases)):
        yield float_refusal(name, array)
        yield shape_refusal(name, array, (outputs, inputs // group))
    if weight.scales.dtype != weight.biases.dtype:
        types = f"scales are {weight.scales.dtype} and biases {weight.biases.dtype}"
        yield f"{types}; one type is needed"
    yield size_refusal("w", weight.packed)
    yield size_refusal("scales", weight.scales)
