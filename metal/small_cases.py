"""Contests of kernels with one geometry: gated delta, convolution, walk.

What stock MLX does instead is handed in where it is another package's kernel.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from dflash_mlx.metal.attention_cases import difference
from dflash_mlx.metal.build import Device, Kernel
from dflash_mlx.metal.candidate_walk import KERNEL as WALK
from dflash_mlx.metal.candidate_walk import (
    CandidateRows,
    Codebooks,
    candidate_walk,
    candidate_walk_reference,
)
from dflash_mlx.metal.delta_verify import KERNEL as DELTA
from dflash_mlx.metal.delta_verify import DeltaRows, delta_verify, delta_verify_reference
from dflash_mlx.metal.grouped_conv import KERNEL as CONV
from dflash_mlx.metal.grouped_conv import grouped_conv, grouped_conv_reference
from dflash_mlx.metal.matrix_cases import chain, dtype_name
from dflash_mlx.metal.tuning_case import TuningCase


@dataclass(frozen=True)
class OneGeometry:
    """The only way in which a kernel cuts its work."""


def delta_case(
    rows: DeltaRows,
    state: mx.array,
    stock: Callable[[DeltaRows, mx.array], mx.array],
    device: Device,
) -> TuningCase[OneGeometry]:
    """A block through one layer; `stock` returns the outputs that another kernel gives."""

    def results(rows: DeltaRows) -> Sequence[mx.array]:
        run = delta_verify(rows, state, device=device)
        return run.y, run.tape, run.after

    def truths(rows: DeltaRows) -> Sequence[mx.array]:
        run = delta_verify_reference(rows, state)
        return run.y.astype(mx.float32), run.tape, run.after

    fewer = DeltaRows(*(getattr(rows, name)[:, :1] for name in rows.__annotations__))
    kind = dtype_name(rows.v.dtype)
    shape = f"state {list(state.shape[1:])}, {rows.q.shape[1]} rows of {kind}"
    return _contest(
        DELTA,
        shape,
        lambda: _first_wrong((results(some), truths(some)) for some in (rows, fewer)),
        rows.q,
        lambda q: delta_verify(replace(rows, q=q), state, device=device).y,
        lambda q: stock(replace(rows, q=q), state),
    )


def conv_case(
    x: mx.array,
    base: mx.array,
    change: mx.array,
    stock: Callable[[mx.array, mx.array, mx.array], mx.array],
    device: Device,
) -> TuningCase[OneGeometry]:
    """A block [B, C] through one convolution; `stock` is the same in MLX operations."""

    def check() -> str | None:
        wide = x.astype(mx.float32)
        truth = grouped_conv_reference(wide, base, change)
        return _first_wrong([([grouped_conv(x, base, change, device=device)], [truth])])

    return _contest(
        CONV,
        f"{list(x.shape)} {dtype_name(x.dtype)} x {base.shape[0]} taps, {change.shape[2]} groups",
        check,
        x,
        lambda row: grouped_conv(row, base, change, device=device),
        lambda row: stock(row, base, change),
    )


def walk_case(
    anchor: mx.array, rows: CandidateRows, books: Codebooks, device: Device
) -> TuningCase[OneGeometry]:
    """A greedy walk over one block."""
    noise = mx.zeros(rows.unary.shape)

    def check() -> str | None:
        ours = candidate_walk(anchor, rows, books, 0.0, noise, device=device)
        truth = candidate_walk_reference(anchor, rows, books, 0.0, noise)
        if not mx.array_equal(ours.tokens, truth.tokens):
            return "another token is chosen"
        return _first_wrong([([ours.log_probs], [truth.log_probs])])

    def stock(unary: mx.array) -> mx.array:
        walked = replace(rows, unary=unary)
        return candidate_walk_reference(anchor, walked, books, 0.0, noise).log_probs

    return _contest(
        WALK,
        f"{list(rows.candidates.shape)} candidates, rank {rows.projected.shape[1]} "
        f"{dtype_name(books.before.dtype)}",
        check,
        rows.unary,
        lambda unary: (
            candidate_walk(
                anchor, replace(rows, unary=unary), books, 0.0, noise, device=device
            ).log_probs
        ),
        mx.compile(stock),
    )


def _contest(
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
    """The first difference between results and their truths, or None."""
    for results, truths in pairs:
        for result, truth in zip(results, truths, strict=True):
            wrong = difference(result, truth)
            if wrong is not None:
                return wrong
    return None
