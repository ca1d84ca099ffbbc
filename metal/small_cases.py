"""Tuning cases of the DFlash 2 kernels, which have one geometry each: convolution and path.

The MLX operations to compare with are an argument of the convolution case.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from dflash_mlx.metal.attention_cases import difference
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.candidate_path import KERNEL as PATH
from dflash_mlx.metal.candidate_path import (
    CandidateRows,
    Codebooks,
    candidate_path,
    candidate_path_reference,
)
from dflash_mlx.metal.grouped_conv import KERNEL as CONV
from dflash_mlx.metal.grouped_conv import grouped_conv, grouped_conv_reference, launch_conv
from dflash_mlx.metal.matrix_cases import chain, dtype_name
from dflash_mlx.metal.tuning_case import TimedWork, TuningCase


@dataclass(frozen=True)
class OneGeometry:
    """The single geometry of a kernel without tuning parameters."""


@dataclass(frozen=True)
class ConvInputs:
    """A block x [B, C], the fixed kernel base [O, C] and its change [B, O, C / G]."""

    x: mx.array
    base: mx.array
    change: mx.array


def conv_case(
    ends: Sequence[ConvInputs],
    stock: Callable[[mx.array, mx.array, mx.array], mx.array],
    device: Device,
) -> TuningCase[OneGeometry]:
    """Return the case of blocks in one convolution; `stock` computes it with MLX operations.

    `ends` holds the inputs of the smallest and the largest block. One pipeline serves all.
    """

    def check(_: OneGeometry) -> str | None:
        for given in ends:
            ours = grouped_conv(given.x, given.base, given.change, device=device)
            wide = given.x.astype(mx.float32)
            expected = grouped_conv_reference(wide, given.base, given.change)
            wrong = difference(ours, expected)
            if wrong is not None:
                return wrong
        return None

    def timed(given: ConvInputs) -> TimedWork[OneGeometry]:
        def ours(row: mx.array, step: int) -> mx.array:
            return launch_conv(row, given.base, given.change, device=device)

        return TimedWork(
            lambda _, steps: chain(given.x, steps, ours),
            lambda steps: chain(
                given.x, steps, lambda row, step: stock(row, given.base, given.change)
            ),
        )

    small, large = ends[0], ends[-1]
    return TuningCase(
        CONV.name,
        CONV.source_hash,
        f"{small.x.shape[0]}-{large.x.shape[0]} rows x {large.x.shape[1]} "
        f"{dtype_name(large.x.dtype)}, kernel size {large.base.shape[0]} "
        f"{dtype_name(large.base.dtype)}, {large.change.shape[2]} groups",
        (OneGeometry(),),
        check,
        [timed(given) for given in ends],
    )


def path_case(
    anchor: mx.array, ends: Sequence[CandidateRows], books: Codebooks, device: Device
) -> TuningCase[OneGeometry]:
    """Return the case of greedy paths; `ends` holds the smallest and the largest block."""

    def check(_: OneGeometry) -> str | None:
        for rows in ends:
            noise = mx.zeros(rows.unary.shape)
            ours = candidate_path(anchor, rows, books, 0.0, noise, device=device)
            expected = candidate_path_reference(anchor, rows, books, 0.0, noise)
            if not mx.array_equal(ours.tokens, expected.tokens):
                return "another token is selected"
            wrong = difference(ours.log_probs, expected.log_probs)
            if wrong is not None:
                return wrong
        return None

    def timed(rows: CandidateRows) -> TimedWork[OneGeometry]:
        noise = mx.zeros(rows.unary.shape)

        def ours(unary: mx.array, step: int) -> mx.array:
            changed = replace(rows, unary=unary)
            return candidate_path(anchor, changed, books, 0.0, noise, device=device).log_probs

        @mx.compile
        def stock(unary: mx.array) -> mx.array:
            changed = replace(rows, unary=unary)
            return candidate_path_reference(anchor, changed, books, 0.0, noise).log_probs

        return TimedWork(
            lambda _, steps: chain(rows.unary, steps, ours),
            lambda steps: chain(rows.unary, steps, lambda unary, step: stock(unary)),
        )

    small, large = ends[0], ends[-1]
    return TuningCase(
        PATH.name,
        PATH.source_hash,
        f"{small.candidates.shape[0]}-{large.candidates.shape[0]} rows x "
        f"{large.candidates.shape[1]} candidates, rank {large.projected.shape[1]} "
        f"{dtype_name(large.projected.dtype)}, codebooks {dtype_name(books.before.dtype)}",
        (OneGeometry(),),
        check,
        [timed(rows) for rows in ends],
    )
