"""Tuning cases: a correct kernel passes its check, a slightly wrong one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.metal.attention_cases import (
    HeadShape,
    block_attention_case,
    stock_mask,
    verify_attention_case,
)
from dflash_mlx.metal.block_attention import BlockKeys, BlockMask, block_attention_reference
from dflash_mlx.metal.build import Device, Launch
from dflash_mlx.metal.candidate_path import CandidateRows, Codebooks
from dflash_mlx.metal.grouped_conv import grouped_conv_reference
from dflash_mlx.metal.head_argmax import Head
from dflash_mlx.metal.matrix_cases import head_case, matrix_case
from dflash_mlx.metal.quantized_verify import QuantizedWeight
from dflash_mlx.metal.small_cases import ConvInputs, conv_case, path_case
from dflash_mlx.metal.tuning_case import TuningCase
from tests.metal.attention_cases import queries
from tests.metal.exactness import drawn


class Broken:
    """A device that changes one value of the first output of every launch."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def run(self, launch: Launch) -> Sequence[mx.array]:
        first, *others = self.device.run(launch)
        flat = first.astype(mx.float32).reshape(-1)
        flat[0] += 0.05 * mx.abs(flat).max()
        return [flat.reshape(first.shape).astype(first.dtype), *others]


def _quantized() -> QuantizedWeight:
    packed, scales, biases = mx.quantize(drawn(1, (90, 128), mx.bfloat16, outliers=False), 64, 4)
    return QuantizedWeight(packed, scales, biases, 64, 4)


def _dense() -> mx.array:
    return drawn(1, (90, 100), mx.bfloat16)


CAPPED = Head(_quantized(), scale=0.5, cap=9.0)
SHAPE = HeadShape(4, 2, 64, mx.bfloat16)


def _path(device: Device) -> TuningCase[Any]:
    ends = [
        CandidateRows(
            mx.array(np.arange(7 * rows).reshape(rows, 7).astype(np.int32)),
            drawn(1, (rows, 7), mx.float32, outliers=False),
            drawn(2, (rows, 16), mx.float32, outliers=False),
        )
        for rows in (1, 3)
    ]
    books = Codebooks(drawn(3, (40, 16), mx.float32), drawn(4, (40, 16), mx.float32))
    return path_case(mx.array(5, mx.int32), ends, books, device)


CASES: dict[str, Callable[[Device], TuningCase[Any]]] = {
    "dense": lambda device: matrix_case(
        [drawn(1, (90, 100), mx.bfloat16)], mx.bfloat16, range(2, 6), device
    ),
    "quantized": lambda device: matrix_case([_quantized()] * 2, mx.bfloat16, range(6, 9), device),
    "head": lambda device: head_case(Head(_quantized()), mx.bfloat16, range(4, 6), 2, device),
    "candidates": lambda device: head_case(
        Head(_quantized(), 0.5, 9.0), mx.float32, range(2, 4), 16, device
    ),
    "verify": lambda device: verify_attention_case(SHAPE, range(2, 6), range(70, 81), device),
    "block": lambda device: block_attention_case(
        SHAPE, range(2, 6), range(40, 51), BlockMask(16, True), device
    ),
    "conv": lambda device: conv_case(
        [
            ConvInputs(
                drawn(1, (rows, 32), mx.bfloat16),
                drawn(2, (2, 32), mx.bfloat16),
                drawn(3, (rows, 2, 2), mx.bfloat16),
            )
            for rows in (2, 5)
        ],
        mx.compile(grouped_conv_reference),
        device,
    ),
    "path": _path,
}


@pytest.mark.parametrize("name", CASES)
def test_a_correct_kernel_passes(name: str, device: Device) -> None:
    """A check that is too strict would disable a correct kernel on every machine."""
    case = CASES[name](device)
    assert case.check(case.candidates[0]) is None


@pytest.mark.parametrize("name", CASES)
def test_one_wrong_value_fails(name: str, device: Device) -> None:
    """A kernel with one value off by 5% of the largest passed a check on averages."""
    case = CASES[name](Broken(device))
    wrong = case.check(case.candidates[0])
    assert wrong is not None


@pytest.mark.parametrize("name", CASES)
def test_both_chains_do_the_same_work(name: str, device: Device) -> None:
    """Timing different amounts of work would compare nothing."""
    case = CASES[name](device)
    for work in case.timed:
        ours, stock = work.ours(case.candidates[0], 2), work.stock(2)
        assert ours.shape == stock.shape
        assert ours.dtype == stock.dtype
        assert mx.array_equal(ours, stock)


def test_every_case_has_its_own_name(device: Device) -> None:
    """Two cases with one name would share a stored result."""
    keys = {make(device).key for make in CASES.values()}
    assert len(keys) == len(CASES)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 20, 100])
def test_stock_mlx_gets_the_same_mask(window: int | None, causal: bool) -> None:
    """Stock attention with another mask does other work and computes another result."""
    mask = BlockMask(window, causal)
    q = queries(1, 4, 5, 64, mx.float32)
    rows = enumerate((30, 30, 5, 5))
    keys = BlockKeys(*(queries(seed, 2, n, 64, mx.float32) for seed, n in rows))
    k = mx.concatenate([keys.context_k, keys.block_k], axis=2)
    v = mx.concatenate([keys.context_v, keys.block_v], axis=2)
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask=stock_mask(30, 5, mask))
    assert mx.allclose(out, block_attention_reference(q, keys, 0.1, mask), rtol=1e-4, atol=1e-5)
