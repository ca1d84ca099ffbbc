"""From the layers of a loaded model to questions for the gate, and from answers to choices.

A contest is held at 4, 8, 16 and 32 rows; its answer holds for all numbers of rows down to the
contest before, because these launch the same number of row tiles. Attention is asked about at
`RACED_KEYS` keys as well; that answer holds up to the next of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from dflash_mlx.metal.attention_contests import (
    HeadShape,
    block_attention_contest,
    verify_attention_contest,
)
from dflash_mlx.metal.block_attention import BlockMask
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.candidate_walk import CandidateRows, Codebooks
from dflash_mlx.metal.choices import AttentionChoices, Choices
from dflash_mlx.metal.chosen_head import N_BEST, ChosenHead
from dflash_mlx.metal.contests import head_contest, matrix_contest, outlying, weight_dtype
from dflash_mlx.metal.gate import Contest
from dflash_mlx.metal.layers import MatrixGroup
from dflash_mlx.metal.small_contests import OneGeometry, conv_contest, walk_contest

RACED_ROWS: Final = (4, 8, 16, 32)


@dataclass(frozen=True)
class Question:
    """A contest, and who is to be told the geometry that it leads to."""

    contest: Contest[Any]
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
    """The numbers of rows that each contest answers for, up to blocks of `most_rows`."""
    least, ranges = 2, []
    for rows in RACED_ROWS:
        if least <= most_rows:
            ranges.append(range(least, rows + 1))
        least = rows + 1
    return ranges


def matrix_questions(
    groups: Sequence[MatrixGroup], most_rows: int, device: Device
) -> list[Question]:
    """What to ask about the matrices of `groups` for blocks of 2 to `most_rows` rows."""
    questions = []
    for group in groups:
        dtype = weight_dtype(group.weights[0])
        for rows in row_ranges(most_rows):
            contest = matrix_contest(group.weights, dtype, rows[-1], device)
            questions.append(Question(contest, _settler(group.choices, rows)))
    return questions


def attention_questions(
    groups: Sequence[AttentionGroup], most_rows: int, device: Device
) -> list[Question]:
    """What to ask about the attentions of `groups` for blocks of 2 to `most_rows` rows."""
    questions = []
    for group in groups:
        for keys, choices in group.choices.by_keys.items():
            for rows in row_ranges(most_rows):
                contest = _attention_contest(group, rows[-1], keys, device)
                questions.append(Question(contest, _settler(choices, rows)))
    return questions


def convolution_questions(
    groups: Sequence[ConvolutionGroup], most_rows: int, device: Device
) -> list[Question]:
    """What to ask about the convolutions of `groups` for blocks of 2 to `most_rows` rows."""
    questions = []
    for group in groups:
        taps, channels = group.base.shape
        dtype = group.base.dtype
        for rows in row_ranges(most_rows):
            x = outlying(rows[-1], channels, dtype)
            change = outlying(rows[-1], taps * group.n_groups, dtype)
            change = change.reshape(rows[-1], taps, group.n_groups)
            contest = conv_contest(x, group.base, change, group.stock, device)
            questions.append(Question(contest, _settler(group.choices, rows)))
    return questions


def walk_questions(groups: Sequence[WalkGroup], most_rows: int, device: Device) -> list[Question]:
    """What to ask about walks over blocks of 2 to `most_rows` rows, anchor included."""
    questions = []
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
            contest = walk_contest(mx.array(0, mx.int32), slots, group.books, device)
            questions.append(Question(contest, _settler(group.choices, rows)))
    return questions


def head_questions(heads: Sequence[ChosenHead], most_rows: int, device: Device) -> list[Question]:
    """What to ask about the best token of blocks of 2 to `most_rows` rows."""
    questions = []
    for chosen in heads:
        dtype = weight_dtype(chosen.head.weight)
        for rows in row_ranges(most_rows):
            contest = head_contest(chosen.head, dtype, rows[-1], N_BEST, device)
            questions.append(Question(contest, _settler(chosen.choices, rows)))
    return questions


def _attention_contest(group: AttentionGroup, rows: int, keys: int, device: Device) -> Contest[Any]:
    if group.mask is None:
        return verify_attention_contest(group.shape, rows, keys, device)
    return block_attention_contest(group.shape, rows, keys, group.mask, device)


def _settler(choices: Choices[Any], rows: range) -> Callable[[Any], None]:
    return lambda geometry: choices.settle(rows, geometry)
