"""Merges the strips of `head_argmax`. Kernel: head_merge.metal.

Shapes: S strips of the vocabulary, M rows, C best tokens per row.
"""

from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.build import DEFAULT_DEVICE, Device, Launch, read_kernel
from dflash_mlx.metal.refusal import first_reason, rank_refusal, refuse, shape_refusal

MAX_COUNT: Final = 32
# One pipeline for every number of strips. 256 threads read the 512 pairs of 256 strips in 2 loads.
SIMDGROUPS: Final = 8

KERNEL: Final = read_kernel(
    "head_merge", ("values", "ids", "masses"), ("logits", "tokens", "log_sum_exp")
)


@dataclass(frozen=True)
class Strips:
    """Results of the strips: values and ids [S, M, C], best first, and masses [S, M, 2].

    A mass is the largest logit and the sum of exp(logit - largest).
    """

    values: mx.array
    ids: mx.array
    masses: mx.array


@dataclass(frozen=True)
class BestTokens:
    """The best tokens of every row, best first; of equal logits the lower token id comes first.

    `tokens` int32 [M, C], `logits` float32 [M, C], `log_sum_exp` float32 [M] over all logits.
    """

    tokens: mx.array
    logits: mx.array
    log_sum_exp: mx.array


def head_merge_reference(strips: Strips) -> BestTokens:
    """Return the best tokens of all strips."""
    _, rows, count = strips.values.shape
    values = strips.values.swapaxes(0, 1).reshape(rows, -1)
    ids = strips.ids.swapaxes(0, 1).reshape(rows, -1)
    # Sorting by id first makes the stable sort by value keep the lower id first.
    by_id = mx.argsort(ids, axis=-1)
    values, ids = (mx.take_along_axis(a, by_id, axis=-1) for a in (values, ids))
    order = mx.argsort(-values, axis=-1)[:, :count]
    top, total = strips.masses[..., 0], strips.masses[..., 1]
    largest = top.max(axis=0)
    return BestTokens(
        mx.take_along_axis(ids, order, axis=-1),
        mx.take_along_axis(values, order, axis=-1),
        largest + mx.log((total * mx.exp(top - largest)).sum(axis=0)),
    )


def head_merge_refusal(strips: Strips) -> str | None:
    """Return why the kernel does not support `strips`, or None."""
    return first_reason(
        (
            rank_refusal("values", strips.values, "S M C"),
            shape_refusal("ids", strips.ids, strips.values.shape),
            shape_refusal("masses", strips.masses, (*strips.values.shape[:2], 2)),
        )
    )


def head_merge(strips: Strips, *, device: Device | None = DEFAULT_DEVICE) -> BestTokens:
    """Return the best tokens of all strips.

    Raises BadRequest for strips that the kernel does not support.
    """
    refuse("head_merge", head_merge_refusal(strips))
    if device is None:
        return head_merge_reference(strips)
    _, rows, count = strips.values.shape
    launch = Launch(
        kernel=KERNEL,
        inputs=(strips.values, strips.ids, strips.masses),
        template=(("COUNT", count), ("SIMDS", SIMDGROUPS)),
        grid=(32 * SIMDGROUPS, rows, 1),
        threadgroup=(32 * SIMDGROUPS, 1, 1),
        output_shapes=((rows, count), (rows, count), (rows,)),
        output_dtypes=(mx.float32, mx.int32, mx.float32),
    )
    logits, tokens, log_sum_exp = device.run(launch)
    return BestTokens(tokens, logits, log_sum_exp)
