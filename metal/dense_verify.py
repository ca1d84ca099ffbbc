"""Product of the rows of a verified block and a dense matrix; each weight is read once.

Shapes: M rows, K inputs, N outputs. Kernel: dense_verify.metal.
"""

from collections.abc import Iterator
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
BLOCK: Final = 32

KERNEL: Final = read_kernel("dense_verify", ("x", "w"), ("y",))


def dense_verify_reference(x: mx.array, w: mx.array) -> mx.array:
    """Return x [M, K] times w [N, K], transposed, accumulated in float32: [M, N] in x's dtype."""
    return (x.astype(mx.float32) @ w.astype(mx.float32).T).astype(x.dtype)


def dense_verify_refusal(x: mx.array, w: mx.array) -> str | None:
    """Return why the kernel does not support these inputs, or None."""
    return first_reason(_reasons(x, w))


def dense_verify(
    x: mx.array,
    w: mx.array,
    *,
    device: Device | None = DEFAULT_DEVICE,
    geometry: MatrixGeometry | None = None,
) -> mx.array:
    """Return x [M, K] times w [N, K], transposed: [M, N] in x's dtype.

    Raises BadRequest for inputs that the kernel does not support.
    """
    refuse("dense_verify", dense_verify_refusal(x, w))
    if device is None:
        return dense_verify_reference(x, w)
    parts = -(-x.shape[1] // BLOCK)
    chosen = geometry or matrix_geometries(x.shape[0], w.shape[0], parts)[0]
    plan = dense_plan(x.dtype, w.dtype, x.shape[0], w.shape[0], chosen)
    (y,) = device.run(Launch(KERNEL, (x, w), *plan))
    return y


@cache
def dense_plan(
    dtype: mx.Dtype, weights: mx.Dtype, rows: int, columns: int, geometry: MatrixGeometry
) -> LaunchPlan:
    """Return the launch for supported x [M, K] of `dtype` and `weights` [N, K]."""
    threads = 32 * geometry.slices
    return LaunchPlan(
        template=(
            ("T", dtype),
            ("W", weights),
            ("NT", geometry.column_tiles),
            ("MT", -(-rows // 8)),
            ("SLICES", geometry.slices),
        ),
        grid=(threads, -(-columns // (8 * geometry.column_tiles)), 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((rows, columns),),
        output_dtypes=(dtype,),
    )


def _reasons(x: mx.array, w: mx.array) -> Iterator[str | None]:
    yield rank_refusal("x", x, "M K")
    yield float_refusal("x", x)
    yield rows_refusal(x.shape[0], 2, MAX_ROWS)
    yield size_refusal("x", x)
    yield from weight_reasons(w, x.shape[1])


def weight_reasons(w: mx.array, inputs: int) -> Iterator[str | None]:
    """Yield why a kernel does not support `w` as a matrix of `inputs` columns, or None."""
    yield rank_refusal("w", w, "N K")
    yield float_refusal("w", w)
    yield shape_refusal("w", w, (w.shape[0], inputs))
    yield size_refusal("w", w)
