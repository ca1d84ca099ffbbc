"""From the layers of a loaded model to tasks for the gate, and from answers to choices.

A case is held at 4, 8, 16 and 32 rows; its answer holds for all numbers of rows down to the
case before, because these launch the same number of row tiles. Attention is asked about at
`RACED_KEYS` keys as well; that answer holds up to the next of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from dflash_mlx.kernels.choices import AttentionChoices, Choices
from dflash_mlx.kernels.fused_head import N_BEST, FusedHead
from dflash_mlx.kernels.layers import MatrixGroup
from dflash_mlx.metal.attention_cases import (
    HeadShape,
    block_attention_case,
    verify_attention_case,
)
from dflash_mlx.metal.block_attention import BlockMask
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.candidate_walk import CandidateRows, Codebooks
from dflash_mlx.metal.matrix_cases import head_case, matrix_case, outlying, weight_dtype
from dflash_mlx.metal.small_cases import OneGeometry, conv_case, walk_case
from dflash_mlx.metal.tuning_case import TuningCase

RACED_ROWS: Final = (4, 8, 16, 32)


@dataclass(frozen=True)
class TuningTask:
    """A case, and who is to be told the geometry that it leads to."""

    case: TuningCase[Any]
    settle: Callable[[Any], None]


@dataclass(frozen=True)
class AttentionGroup:
    """The attentions of one shape in a model, and the choices they share.

    `mask` is that of a draft's block; None is a verified block's, causal over one cache.
    """

    shape: HeadShape
    mask: BlockMask | None
    choices: AttentionChoices


@dataclass(frozen=True)
class ConvolutionGroup:
    """The convolutions of one shape in a draft, and the choices they share.

    `base` is the fixed kernel [T, D] of one of them. `stock(rows [B, D], base [T, D], change
    [B, T, G])` is what MLX operations make of a block.
    """

    base: mx.array
    n_groups: int
    stock: Callable[[mx.array, mx.array, mx.array], mx.array]
    choices: Choices[OneGeometry]


@dataclass(frozen=True)
class WalkGroup:
    """The walk of a draft over `n_candidates` a slot with its codebooks, and its choices."""

    books: Codebooks
    n_candidates: int
    choices: Choices[OneGeometry]


def row_ranges(most_rows: int) -> list[range]:
    """The numbers of rows that each case answers for, up to blocks of `most_rows`."""
    least, ranges = 2, []
    for rows in RACED_ROWS:
        if least <= most_rows:
            ranges.append(range(least, rows + 1))
        least = rows + 1
    return ranges


def matrix_tasks(groups: Sequence[MatrixGroup], most_rows: int, device: Device) -> list[TuningTask]:
    """What to ask about the matrices of `groups` for blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        dtype = weight_dtype(group.weights[0])
        for rows in row_ranges(most_rows):
            case = matrix_case(group.weights, dtype, rows[-1], device)
            tasks.append(TuningTask(case, _settler(group.choices, rows)))
    return tasks


def attention_tasks(
    groups: Sequence[AttentionGroup], most_rows: int, device: Device
) -> list[TuningTask]:
    """What to ask about the attentions of `groups` for blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        for keys, choices in group.choices.by_keys.items():
            for rows in row_ranges(most_rows):
                case = _attention_case(group, rows[-1], keys, device)
                tasks.append(TuningTask(case, _settler(choices, rows)))
    return tasks


def convolution_tasks(
    groups: Sequence[ConvolutionGroup], most_rows: int, device: Device
) -> list[TuningTask]:
    """What to ask about the convolutions of `groups` for blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        taps, channels = group.base.shape
        dtype = group.base.dtype
        for rows in row_ranges(most_rows):
            x = outlying(rows[-1], channels, dtype)
            change = outlying(rows[-1], taps * group.n_groups, dtype)
            change = change.reshape(rows[-1], taps, group.n_groups)
            case = conv_case(x, group.base, change, group.stock, device)
            tasks.append(TuningTask(case, _settler(group.choices, rows)))
    return tasks


def walk_tasks(groups: Sequence[WalkGroup], most_rows: int, device: Device) -> list[TuningTask]:
    """What to ask about walks over blocks of 2 to `most_rows` rows, anchor included."""
    tasks = []
    for group in groups:
        n_tokens, rank = group.books.before.shape
        for rows in row_ranges(most_rows):
            shape = (rows[-1] - 1, group.n_candidates)
            spread = mx.arange(shape[0] * shape[1]) * 7919 % n_tokens
            slots = CandidateRows(
                spread.reshape(shape).astype(mx.int32),
                outlying(*shape, mx.float32),
                outlying(shape[0], rank, group.books.before.dtype),
            )
            case = walk_case(mx.array(0, mx.int32), slots, group.books, device)
            tasks.append(TuningTask(case, _settler(group.choices, rows)))
    return tasks


def head_tasks(heads: Sequence[FusedHead], most_rows: int, device: Device) -> list[TuningTask]:
    """What to ask about the best token of blocks of 2 to `most_rows` rows."""
    tasks = []
    for chosen in heads:
        dtype = weight_dtype(chosen.head.weight)
        for rows in row_ranges(most_rows):
            case = head_case(chosen.head, dtype, rows[-1], N_BEST, device)
            tasks.append(TuningTask(case, _settler(chosen.choices, rows)))
    return tasks


def _attention_case(group: AttentionGroup, rows: int, keys: int, device: Device) -> TuningCase[Any]:
    if group.mask is None:
        return verify_attention_case(group.shape, rows, keys, device)
    return block_attention_case(group.shape, rows, keys, group.mask, device)


def _settler(choices: Choices[Any], rows: range) -> Callable[[Any], None]:
    return lambda geometry: choices.settle(rows, geometry)
