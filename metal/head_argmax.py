"""Fused language-model head: returns the best tokens without writing the logits.

Shapes: M rows, K hidden size, N vocabulary, C best tokens per row. Kernels:
head_argmax.metal, then head_merge.metal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from dflash_mlx.metal import dense_verify, quantized_verify
from dflash_mlx.metal.build import DEFAULT_DEVICE, Device, Launch, read_kernel
from dflash_mlx.metal.geometry import MatrixGeometry, matrix_geometries
from dflash_mlx.metal.head_merge import MAX_COUNT, BestTokens, Strips, head_merge
from dflash_mlx.metal.quantized_verify import QuantizedWeight
from dflash_mlx.metal.refusal import (
    first_reason,
    float_refusal,
    rank_refusal,
    refuse,
    rows_refusal,
    size_refusal,
)

MAX_ROWS: Final = 32
# At least three threadgroups per core of an M3 Ultra (80 cores). Their lists are small
# next to the logits: 256 strips of 2 tokens for a vocabulary of 151,936.
MAX_STRIPS: Final = 256

KERNEL: Final = read_kernel(
    "head_argmax",
    ("x", "w", "scales", "biases", "factors"),
    ("values", "ids", "masses"),
)


@dataclass(frozen=True)
class Head:
    """A language-model head: weight [N, K], logits times `scale`, then the soft cap.

    The soft cap maps a logit to cap * tanh(logit / cap).
    """

    weight: mx.array | QuantizedWeight
    scale: float = 1.0
    cap: float | None = None


def head_argmax_reference(x: mx.array, head: Head, count: int) -> BestTokens:
    """Return the `count` best tokens of rows x [M, K], with logits in float32."""
    logits = head_logits(x.astype(mx.float32), head)
    # A stable sort keeps equal logits in the order of their ids.
    tokens = mx.argsort(-logits, axis=-1)[:, :count].astype(mx.int32)
    best = mx.take_along_axis(logits, tokens, axis=-1)
    return BestTokens(tokens, best, mx.logsumexp(logits, axis=-1))


def head_logits(x: mx.array, head: Head) -> mx.array:
    """Return the logits [M, N] of rows x [M, K], in x's dtype."""
    if isinstance(head.weight, QuantizedWeight):
        logits = quantized_verify.quantized_verify_reference(x, head.weight)
    else:
        logits = dense_verify.dense_verify_reference(x, head.weight)
    logits = logits * head.scale
    return logits if head.cap is None else head.cap * mx.tanh(logits / head.cap)


def head_argmax_refusal(x: mx.array, head: Head, count: int) -> str | None:
    """Return why the kernel does not support these inputs, or None."""
    return first_reason(_reasons(x, head, count))


def head_argmax(
    x: mx.array,
    head: Head,
    count: int = 2,
    *,
    device: Device | None = DEFAULT_DEVICE,
    geometry: MatrixGeometry | None = None,
) -> BestTokens:
    """Return the `count` best tokens of rows x [M, K], and the log-sum-exp of all logits.

    Two tokens are the argmax and the runner-up. Raises BadRequest for inputs that the kernel
    does not support.
    """
    refuse("head_argmax", head_argmax_refusal(x, head, count))
    if device is None:
        return head_argmax_reference(x, head, count)
    chosen = geometry or head_geometries(x, head)[0]
    values, ids, masses = device.run(_launch(x, head, count, chosen))
    return head_merge(Strips(values, ids, masses), device=device)


def head_geometries(x: mx.array, head: Head) -> tuple[MatrixGeometry, ...]:
    """Return candidate geometries, best guess first."""
    if isinstance(head.weight, QuantizedWeight):
        columns, part = head.weight.packed.shape[0], head.weight.group_size
    else:
        columns, part = head.weight.shape[0], dense_verify.BLOCK
    return matrix_geometries(x.shape[0], columns, x.shape[1] // part)


def _launch(x: mx.array, head: Head, count: int, geometry: MatrixGeometry) -> Launch:
    weight = head.weight
    if isinstance(weight, QuantizedWeight):
        arrays = (weight.packed, weight.scales, weight.biases)
        scale_dtype, bits, group = weight.scales.dtype, weight.bits, weight.group_size
    else:
        arrays = (weight, weight, weight)
        scale_dtype, bits, group = weight.dtype, 4, 32
    rows, columns = x.shape[0], arrays[0].shape[0]
    tiles = -(-columns // (8 * geometry.column_tiles))
    strips = -(-tiles // -(-tiles // MAX_STRIPS))
    threads = 32 * geometry.slices
    return Launch(
        kernel=KERNEL,
        inputs=(x, *arrays, mx.array([head.scale, head.cap or 1.0], mx.float32)),
        template=(
            ("T", x.dtype),
            ("S", scale_dtype),
            ("QUANTIZED", isinstance(weight, QuantizedWeight)),
            ("BITS", bits),
            ("GROUP", group),
            ("KB", quantized_verify.block_of(rows, group)),
            ("NT", geometry.column_tiles),
            ("MT", -(-rows // 8)),
            ("SLICES", geometry.slices),
            ("COUNT", count),
            ("CAPPED", head.cap is not None),
        ),
        grid=(threads, strips, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((strips, rows, count), (strips, rows, count), (strips, rows, 2)),
        output_dtypes=(mx.float32, mx.int32, mx.float32),
    )


def _reasons(x: mx.array, head: Head, count: int) -> Iterator[str | None]:
    yield rank_refusal("x", x, "M K")
    yield float_refusal("x", x)
    yield rows_refusal(x.shape[0], 1, MAX_ROWS)
    yield size_refusal("x", x)
    if isinstance(head.weight, QuantizedWeight):
        yield from quantized_verify.weight_reasons(head.weight, x.shape[1])
        vocabulary = head.weight.packed.shape[0]
    else:
        yield from dense_verify.weight_reasons(head.weight, x.shape[1])
        vocabulary = head.weight.shape[0]
    if not 1 <= count <= min(MAX_COUNT, vocabulary):
        most = min(MAX_COUNT, vocabulary)
        yield f"count is {count} for {vocabulary} tokens; 1 to {most} is needed"
    if head.cap is not None and not head.cap > 0:
        yield f"the soft cap is {head.cap}; a positive number or None is needed"
