"""The entries of the table: for every shape our launches and those of MLX's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from dflash_mlx.metal.build import Device, Launch
from dflash_mlx.metal.dense_verify import dense_verify
from dflash_mlx.metal.head_argmax import Head, head_argmax
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_verify
from dflash_mlx.metal.verify_attention import verify_attention
from tests.metal import stock
from tests.metal.count.counter import LaunchRecorder
from tests.metal.count.models import CONTEXT, MODELS, ROWS, Attention, Matrix, Model

GROUP, BITS = 64, 4
# Axes along which threadgroups differ only in their head or row.
HEADS_ALIKE = {"verify_attention": (1,), "MLX sdpa_vector": (0,), "MLX attention": (1,)}
MOST_VECTOR_ROWS = 15  # gemv_wide; MLX uses a matrix kernel for more rows


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    flops: useful operations, 2 M N K. watched: inputs that should be read once. alike: axes of the
    grid along which all threadgroups do the same work.
    """

    model: str
    layer: str
    rows: int
    weights: str
    kernel: str
    times: int
    flops: int
    watched: tuple[str, ...]
    launches: tuple[Launch, ...]
    alike: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The name in the stored baseline."""
        return " | ".join((self.model, self.layer, self.weights, f"M {self.rows}", self.kernel))

    @property
    def stock(self) -> bool:
        """Whether this is a kernel of MLX, which changes with its version."""
        return self.kernel.startswith("MLX ")

    @property
    def watched_bytes(self) -> int:
        """The bytes of the weights or of the cache."""
        seen = {}
        for launch in self.launches:
            for name, array in zip(launch.kernel.inputs, launch.inputs, strict=True):
                if name in self.watched:
                    seen[id(array)] = array.nbytes
        return sum(seen.values())


def entries() -> Iterator[Entry]:
    """Yield all lines in the order of the table."""
    for model in MODELS:
        for rows in ROWS:
            for matrix in (*model.matrices, model.head):
                yield from _quantized(model, matrix, rows)
                yield from _dense(model, matrix, rows)
            yield from _attention(model, model.attention, rows)


def blank_weight(outputs: int, inputs: int) -> QuantizedWeight:
    """Return a 4-bit weight of zeros that is never computed."""
    packed = mx.zeros((outputs, inputs * BITS // 32), mx.uint32)
    scales, biases = (mx.zeros((outputs, inputs // GROUP), mx.bfloat16) for _ in range(2))
    return QuantizedWeight(packed, scales, biases, GROUP, BITS)


def _record(call: Callable[[Device], object]) -> tuple[Launch, ...]:
    recorder = LaunchRecorder()
    call(recorder)
    return tuple(recorder.launches)


def _quantized(model: Model, matrix: Matrix, rows: int) -> Iterator[Entry]:
    x = mx.zeros((rows, matrix.inputs), mx.bfloat16)
    weight = blank_weight(matrix.outputs, matrix.inputs)
    if matrix is model.head:
        ours = _record(lambda device: head_argmax(x, Head(weight), device=device))
    else:
        ours = _record(lambda device: quantized_verify(x, weight, device=device))
    for kernel, launches in (
        ("head_argmax" if matrix is model.head else "quantized_verify", ours),
        ("MLX qmv_wide", (stock.qmv_wide(x, weight),)),
        ("MLX qmm_t", (stock.qmm_t(x, weight),)),
    ):
        yield _matrix_entry(model, matrix, rows, "4-bit", kernel, launches)


def _dense(model: Model, matrix: Matrix, rows: int) -> Iterator[Entry]:
    x = mx.zeros((rows, matrix.inputs), mx.bfloat16)
    weight = mx.zeros((matrix.outputs, matrix.inputs), mx.bfloat16)
    if matrix is model.head:
        kernel, ours = "head_argmax", _record(lambda d: head_argmax(x, Head(weight), device=d))
    else:
        kernel, ours = "dense_verify", _record(lambda d: dense_verify(x, weight, device=d))
    yield _matrix_entry(model, matrix, rows, "bf16", kernel, ours)
    if rows <= MOST_VECTOR_ROWS:
        launches = (stock.gemv_wide(x, weight),)
        yield _matrix_entry(model, matrix, rows, "bf16", "MLX gemv_wide", launches)


def _matrix_entry(
    model: Model,
    matrix: Matrix,
    rows: int,
    weights: str,
    kernel: str,
    launches: tuple[Launch, ...],
) -> Entry:
    return Entry(
        model.name,
        f"{matrix.name} {matrix.outputs} x {matrix.inputs}",
        rows,
        weights,
        kernel,
        matrix.times,
        2 * rows * matrix.outputs * matrix.inputs,
        ("w", "scales", "biases"),
        launches,
    )


def _attention(model: Model, shape: Attention, rows: int) -> Iterator[Entry]:
    length = CONTEXT + rows
    q = mx.zeros((1, shape.heads, rows, shape.head_size), mx.bfloat16)
    k, v = (mx.zeros((1, shape.kv_heads, length, shape.head_size), mx.bfloat16) for _ in range(2))
    ours = _record(lambda device: verify_attention(q, k, v, 1.0, device=device))
    kernels = [("verify_attention", ours, ("k", "v"))]
    # MLX uses the vector kernel up to 8 rows and 32 rows of all heads of a group, its tiled
    # kernel up to head size 128, and several operations otherwise.
    if rows <= 8 and rows * shape.heads // shape.kv_heads <= 32:
        launch = stock.sdpa_vector(q[0], k[0], v[0])
        kernels.append(("MLX sdpa_vector", (launch,), ("keys", "values")))
    elif rows > 8 and shape.head_size <= 128:
        launch = stock.tiled_attention(q[0], k[0], v[0])
        kernels.append(("MLX attention", (launch,), ("keys", "values")))
    for kernel, launches, watched in kernels:
        yield Entry(
            model.name,
            f"attention {shape.heads}/{shape.kv_heads} x {shape.head_size}, {CONTEXT} keys",
            rows,
            "bf16",
            kernel,
            shape.times,
            4 * rows * length * shape.heads * shape.head_size,
            watched,
            launches,
            HEADS_ALIKE.get(kernel, ()),
        )
