"""Builds the tuning tasks of a loaded model: which cases to tune, and which choices they set.

It must not know how a case is checked or timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from dflash_mlx.kernels.choices import AttentionChoices, Choices
from dflash_mlx.kernels.fused_head import FusedHead
from dflash_mlx.kernels.layers import MatrixGroup
from dflash_mlx.metal.attention_cases import (
    HeadShape,
    block_attention_case,
    verify_attention_case,
)
from dflash_mlx.metal.block_attention import BlockMask
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.candidate_path import CandidateRows, Codebooks
from dflash_mlx.metal.matrix_cases import head_case, matrix_case, outlying
from dflash_mlx.metal.small_cases import ConvInputs, OneGeometry, conv_case, path_case
from dflash_mlx.metal.tuning_case import TuningCase

MATRIX_ROWS: Final = (3, 5, 8, 10, 12, 16, 24, 32)
"""Last row counts of the ranges that one matrix case decides.

All counts of a range launch the same row tiles of 8. Stock MLX 0.32 reads weights once per 5 rows
(qmv_wide) and changes to a matrix kernel at 6, 10, 12, 13, 14, 15, 18, 25, 32 or 33 rows, by chip
and shape (get_qmv_batch_limit). At most one change falls inside a range, so that stock MLX is
fastest relative to the kernel at one of its ends.
"""

ATTENTION_ROWS: Final = (5, 8, 16, 32)
"""Last row counts of the ranges that one attention case decides.

Stock MLX 0.32 changes its kernel above 8 rows, and above 32 rows of all query heads of a KV head.
"""


@dataclass(frozen=True)
class TuningTask:
    """A tuning case, and the function that applies the selected geometry (None: stock MLX).

    `most_rows` is the largest number of rows that the case decides.
    """

    case: TuningCase[Any]
    select: Callable[[Any], None]
    most_rows: int


@dataclass(frozen=True)
class AttentionGroup:
    """The attention layers of one shape in a model, and the choices they share.

    `mask` is the mask of a draft block; None means a verified block, causal over one cache.
    """

    shape: HeadShape
    mask: BlockMask | None
    choices: AttentionChoices


@dataclass(frozen=True)
class ConvolutionGroup:
    """The convolutions of one shape in a draft, and the choices they share.

    `base` is the fixed kernel [T, D] of one of them, and `dtype` the type of the rows.
    `stock(rows [B, D], base [T, D], change [B, T, G])` computes the same convolution with MLX
    operations.
    """

    base: mx.array
    n_groups: int
    dtype: mx.Dtype
    stock: Callable[[mx.array, mx.array, mx.array], mx.array]
    choices: Choices[OneGeometry]


@dataclass(frozen=True)
class SelectorGroup:
    """The selector of a draft: codebooks, `n_candidates` per slot, row type, and its choices."""

    books: Codebooks
    n_candidates: int
    dtype: mx.Dtype
    choices: Choices[OneGeometry]


def row_ranges(ends: Sequence[int], most_rows: int) -> list[range]:
    """Return the ranges of row counts with one case each, for blocks of 2 to `most_rows` rows."""
    least, ranges = 2, []
    for last in ends:
        if least <= most_rows:
            ranges.append(range(least, last + 1))
        least = last + 1
    return ranges


def matrix_tasks(groups: Sequence[MatrixGroup], most_rows: int, device: Device) -> list[TuningTask]:
    """Return the tasks for the matrices of `groups` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        for rows in row_ranges(MATRIX_ROWS, most_rows):
            case = matrix_case(group.weights, group.dtype, rows, device)
            tasks.append(TuningTask(case, _selector(group.choices, rows), rows[-1]))
    return tasks


def attention_tasks(
    groups: Sequence[AttentionGroup], most_rows: int, device: Device
) -> list[TuningTask]:
    """Return the tasks for the attention layers of `groups` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        for keys, choices in group.choices.ranges():
            for rows in row_ranges(ATTENTION_ROWS, most_rows):
                case = _attention_case(group, rows, keys, device)
                tasks.append(TuningTask(case, _selector(choices, rows), rows[-1]))
    return tasks


def convolution_tasks(
    groups: Sequence[ConvolutionGroup], most_rows: int, device: Device
) -> list[TuningTask]:
    """Return the tasks for the convolutions of `groups` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        kernel_size, channels = group.base.shape
        ends = []
        for rows in (2, most_rows):
            change = outlying(rows, kernel_size * group.n_groups, group.dtype)
            ends.append(
                ConvInputs(
                    outlying(rows, channels, group.dtype),
                    group.base,
                    change.reshape(rows, kernel_size, group.n_groups),
                )
            )
        case = conv_case(ends, group.stock, device)
        tasks.append(TuningTask(case, _selector(group.choices, range(2, most_rows + 1)), most_rows))
    return tasks


def path_tasks(groups: Sequence[SelectorGroup], most_rows: int, device: Device) -> list[TuningTask]:
    """Return the tasks for path selection in blocks of 2 to `most_rows` rows, anchor included."""
    tasks = []
    for group in groups:
        n_tokens, rank = group.books.before.shape
        ends = []
        for rows in (2, most_rows):
            shape = (rows - 1, group.n_candidates)
            spread = mx.arange(shape[0] * shape[1]) * 7919 % n_tokens
            ends.append(
                CandidateRows(
                    spread.reshape(shape).astype(mx.int32),
                    outlying(*shape, mx.float32),
                    outlying(shape[0], rank, group.dtype),
                )
            )
        case = path_case(mx.array(0, mx.int32), ends, group.books, device)
        tasks.append(TuningTask(case, _selector(group.choices, range(2, most_rows + 1)), most_rows))
    return tasks


def head_tasks(heads: Sequence[FusedHead], most_rows: int, device: Device) -> list[TuningTask]:
    """Return the tasks for the fused argmax of `heads` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for fused in heads:
        for rows in row_ranges(MATRIX_ROWS, most_rows):
            case = head_case(fused.head, fused.dtype, rows, fused.count, device)
            tasks.append(TuningTask(case, _selector(fused.choices, rows), rows[-1]))
    return tasks


def by_rows(tasks: Sequence[TuningTask]) -> list[TuningTask]:
    """Return the tasks of the largest blocks first, otherwise in the given order.

    Rounds use the largest block most, and the time for tuning at one start is limited.
    """
    return sorted(tasks, key=lambda task: -task.most_rows)


def _attention_case(
    group: AttentionGroup, rows: range, keys: range, device: Device
) -> TuningCase[Any]:
    if group.mask is None:
        return verify_attention_case(group.shape, rows, keys, device)
    return block_attention_case(group.shape, rows, keys, group.mask, device)


def _selector(choices: Choices[Any], rows: range) -> Callable[[Any], None]:
    return lambda geometry: choices.select(rows, geometry)
