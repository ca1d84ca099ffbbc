"""Tuning cases of the DFlash 2 kernels, which have one geometry each: convolution and path.

The MLX operations to compare with are an argument of the convolution case.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from dflash_mlx.metal.attention_cases import difference
from dflash_mlx.metal.build import Device, Kernel
from dflash_mlx.metal.candidate_path import KERNEL as PATH
from dflash_mlx.metal.candidate_path import (
    CandidateRows,
    Codebooks,
    candidate_path,
    candidate_path_reference,
)
from dflash_mlx.metal.grouped_conv import KERNEL as CONV
from dflash_mlx.metal.grouped_conv import grouped_conv, grouped_conv_reference
from dflash_mlx.metal.matrix_cases import chain, dtype_name
from dflash_mlx.metal.tuning_case import TuningCase


@dataclass(frozen=True)
class OneGeometry:
    """The single geometry of a kernel without tuning parameters."""


def conv_case(
    x: mx.array,
    base: mx.array,
    change: mx.array,
    stock: Callable[[mx.array, mx.array, mx.array], mx.array],
    device: Device,
) -> TuningCase[OneGeometry]:
    """Return the case of a block [B, C] in one convolution; `stock` computes it with MLX."""

    def check() -> str | None:
        wide = x.astype(mx.float32)
        truth = grouped_conv_reference(wide, base, change)
        return _first_wrong([([grouped_conv(x, base, change, device=device)], [truth])])

    return _case(
        CONV,
        f"{list(x.shape)} {dtype_name(x.dtype)}, kernel size {base.shape[0]}, "
        f"{change.shape[2]} groups",
        check,
        x,
        lambda row: grouped_conv(row, base, change, device=device),
        lambda row: stock(row, base, change),
    )


def path_case(
    anchor: mx.array, rows: CandidateRows, books: Codebooks, device: Device
) -> TuningCase[OneGeometry]:
    """Return the case of a greedy path over one block."""
    noise = mx.zeros(rows.unary.shape)

    def check() -> str | None:
        ours = candidate_path(anchor, rows, books, 0.0, noise, device=device)
        truth = candidate_path_reference(anchor, rows, books, 0.0, noise)
        if not mx.array_equal(ours.tokens, truth.tokens):
            return "another token is chosen"
        return _first_wrong([([ours.log_probs], [truth.log_probs])])

    def stock(unary: mx.array) -> mx.array:
        changed = replace(rows, unary=unary)
        return candidate_path_reference(anchor, changed, books, 0.0, noise).log_probs

    return _case(
        PATH,
        f"{list(rows.candidates.shape)} candidates, rank {rows.projected.shape[1]} "
        f"{dtype_name(books.before.dtype)}",
        check,
        rows.unary,
        lambda unary: (
            candidate_path(
                anchor, replace(rows, unary=unary), books, 0.0, noise, device=device
            ).log_probs
        ),
        mx.compile(stock),
    )


def _case(
    kernel: Kernel,
    shape: str,
    check: Callable[[], str | None],
    x: mx.array,
    ours: Callable[[mx.array], mx.array],
    stock: Callable[[mx.array], mx.array],
) -> TuningCase[OneGeometry]:
    return TuningCase(
        kernel.name,
        kernel.source_hash,
        shape,
        (OneGeometry(),),
        lambda _: check(),
        lambda _, steps: chain(x, steps, lambda row, step: ours(row)),
        lambda steps: chain(x, steps, lambda row, step: stock(row)),
    )


def _first_wrong(
    pairs: Iterable[tuple[Sequence[mx.array], Sequence[mx.array]]],
) -> str | None:
    """Return the first difference between results and expected arrays, or None."""
    for results, truths in pairs:
        for result, truth in zip(results, truths, strict=True):
            wrong = difference(result, truth)
            if wrong is not None:
                return wrong
    return None
