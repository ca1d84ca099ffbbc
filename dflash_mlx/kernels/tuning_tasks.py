"""Builds the tuning tasks of a loaded model: which cases to tune, and which choices they set.

A case is tuned at the largest number of rows of its range; attention also at `TUNED_KEYS` keys.
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
from dflash_mlx.metal.candidate_path import CandidateRows, Codebooks
from dflash_mlx.metal.matrix_cases import head_case, matrix_case, outlying, weight_dtype
from dflash_mlx.metal.small_cases import OneGeometry, conv_case, path_case
from dflash_mlx.metal.tuning_case import TuningCase

TUNED_ROWS: Final = (4, 8, 16, 32)


@dataclass(frozen=True)
class TuningTask:
    """A tuning case, and the function that applies the selected geometry (None: stock MLX)."""

    case: TuningCase[Any]
    select: Callable[[Any], None]


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

    `base` is the fixed kernel [T, D] of one of them. `stock(rows [B, D], base [T, D], change
    [B, T, G])` computes the same convolution with MLX operations.
    """

    base: mx.array
    n_groups: int
    stock: Callable[[mx.array, mx.array, mx.array], mx.array]
    choices: Choices[OneGeometry]


@dataclass(frozen=True)
class SelectorGroup:
    """The selector of a draft: its codebooks, `n_candidates` per slot, and its choices."""

    books: Codebooks
    n_candidates: int
    choices: Choices[OneGeometry]


def row_ranges(most_rows: int) -> list[range]:
    """Return the ranges of row counts with one case each, for blocks of 2 to `most_rows` rows."""
    least, ranges = 2, []
    for rows in TUNED_ROWS:
        if least <= most_rows:
            ranges.append(range(least, rows + 1))
        least = rows + 1
    return ranges


def matrix_tasks(groups: Sequence[MatrixGroup], most_rows: int, device: Device) -> list[TuningTask]:
    """Return the tasks for the matrices of `groups` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        dtype = weight_dtype(group.weights[0])
        for rows in row_ranges(most_rows):
            case = matrix_case(group.weights, dtype, rows[-1], device)
            tasks.append(TuningTask(case, _selector(group.choices, rows)))
    return tasks


def attention_tasks(
    groups: Sequence[AttentionGroup], most_rows: int, device: Device
) -> list[TuningTask]:
    """Return the tasks for the attention layers of `groups` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        for keys, choices in group.choices.by_keys.items():
            for rows in row_ranges(most_rows):
                case = _attention_case(group, rows[-1], keys, device)
                tasks.append(TuningTask(case, _selector(choices, rows)))
    return tasks


def convolution_tasks(
    groups: Sequence[ConvolutionGroup], most_rows: int, device: Device
) -> list[TuningTask]:
    """Return the tasks for the convolutions of `groups` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for group in groups:
        kernel_size, channels = group.base.shape
        dtype = group.base.dtype
        for rows in row_ranges(most_rows):
            x = outlying(rows[-1], channels, dtype)
            change = outlying(rows[-1], kernel_size * group.n_groups, dtype)
            change = change.reshape(rows[-1], kernel_size, group.n_groups)
            case = conv_case(x, group.base, change, group.stock, device)
            tasks.append(TuningTask(case, _selector(group.choices, rows)))
    return tasks


def path_tasks(groups: Sequence[SelectorGroup], most_rows: int, device: Device) -> list[TuningTask]:
    """Return the tasks for path selection in blocks of 2 to `most_rows` rows, anchor included."""
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
            case = path_case(mx.array(0, mx.int32), slots, group.books, device)
            tasks.append(TuningTask(case, _selector(group.choices, rows)))
    return tasks


def head_tasks(heads: Sequence[FusedHead], most_rows: int, device: Device) -> list[TuningTask]:
    """Return the tasks for the fused argmax of `heads` and blocks of 2 to `most_rows` rows."""
    tasks = []
    for fused in heads:
        dtype = weight_dtype(fused.head.weight)
        for rows in row_ranges(most_rows):
            case = head_case(fused.head, dtype, rows[-1], N_BEST, device)
            tasks.append(TuningTask(case, _selector(fused.choices, rows)))
    return tasks


def _attention_case(group: AttentionGroup, rows: int, keys: int, device: Device) -> TuningCase[Any]:
    if group.mask is None:
        return verify_attention_case(group.shape, rows, keys, device)
    return block_attention_case(group.shape, rows, keys, group.mask, device)


def _selector(choices: Choices[Any], rows: range) -> Callable[[Any], None]:
    return lambda geometry: choices.select(rows, geometry)
