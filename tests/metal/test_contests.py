"""Contests: a right kernel passes its check, a slightly wrong one never does."""

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
from dflash_mlx.metal.candidate_walk import CandidateRows, Codebooks
from dflash_mlx.metal.delta_verify import DeltaRows, delta_verify_reference
from dflash_mlx.metal.grouped_conv import grouped_conv_reference
from dflash_mlx.metal.head_argmax import Head
from dflash_mlx.metal.matrix_cases import head_case, matrix_case
from dflash_mlx.metal.quantized_verify import QuantizedWeight
from dflash_mlx.metal.small_cases import conv_case, delta_case, walk_case
from dflash_mlx.metal.tuning_case import TuningCase
from tests.metal.attention_cases import queries
from tests.metal.exactness import drawn
from tests.metal.test_delta_verify import delta_inputs


class Broken:
    """A device that spoils one value of the first output of every launch."""

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
DELTA = {"dtype": "bfloat16", "rows": 5, "heads": (1, 2), "value_size": 16, "key_size": 64}


def _delta(device: Device) -> TuningCase[Any]:
    rows, state = delta_inputs(DELTA)

    def stock(rows: DeltaRows, state: mx.array) -> mx.array:
        return delta_verify_reference(rows, state).y

    return delta_case(rows, state, stock, device)


def _walk(device: Device) -> TuningCase[Any]:
    candidates = mx.array(np.arange(21).reshape(3, 7).astype(np.int32))
    rows = CandidateRows(
        candidates,
        drawn(1, (3, 7), mx.float32, outliers=False),
        drawn(2, (3, 16), mx.float32, outliers=False),
    )
    books = Codebooks(drawn(3, (40, 16), mx.float32), drawn(4, (40, 16), mx.float32))
    return walk_case(mx.array(5, mx.int32), rows, books, device)


CONTESTS: dict[str, Callable[[Device], TuningCase[Any]]] = {
    "dense": lambda device: matrix_case([drawn(1, (90, 100), mx.bfloat16)], mx.bfloat16, 5, device),
    "quantized": lambda device: matrix_case([_quantized()] * 2, mx.bfloat16, 8, device),
    "head": lambda device: head_case(Head(_quantized()), mx.bfloat16, 5, 2, device),
    "candidates": lambda device: head_case(Head(_quantized(), 0.5, 9.0), mx.float32, 3, 16, device),
    "verify": lambda device: verify_attention_case(SHAPE, 5, 70, device),
    "block": lambda device: block_attention_case(SHAPE, 5, 40, BlockMask(16, True), device),
    "delta": _delta,
    "conv": lambda device: conv_case(
        drawn(1, (5, 32), mx.bfloat16),
        drawn(2, (2, 32), mx.bfloat16),
        drawn(3, (5, 2, 2), mx.bfloat16),
        mx.compile(grouped_conv_reference),
        device,
    ),
    "walk": _walk,
}


@pytest.mark.parametrize("name", CONTESTS)
def test_a_right_kernel_passes(name: str, device: Device) -> None:
    """A check that is too strict would turn a good kernel off on every machine."""
    contest = CONTESTS[name](device)
    assert contest.check(contest.candidates[0]) is None


@pytest.mark.parametrize("name", CONTESTS)
def test_one_wrong_value_does_not_pass(name: str, device: Device) -> None:
    """One value off by a twentieth of the greatest is a wrong kernel."""
    contest = CONTESTS[name](Broken(device))
    wrong = contest.check(contest.candidates[0])
    assert wrong is not None


@pytest.mark.parametrize("name", CONTESTS)
def test_both_chains_do_the_same_work(name: str, device: Device) -> None:
    """A race between different amounts of work says nothing."""
    contest = CONTESTS[name](device)
    ours, stock = contest.ours(contest.candidates[0], 2), contest.stock(2)
    assert ours.shape == stock.shape
    assert ours.dtype == stock.dtype
    assert mx.array_equal(ours, stock)


def test_shapes_have_names_of_their_own(device: Device) -> None:
    """Two questions under one name would share an answer."""
    keys = {make(device).key for make in CONTESTS.values()}
    assert len(keys) == len(CONTESTS)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 20, 100])
def test_the_mask_for_stock_mlx_means_the_same(window: int | None, causal: bool) -> None:
    """A race against attention that sees other keys would be unfair, and its fallback wrong."""
    mask = BlockMask(window, causal)
    q = queries(1, 4, 5, 64, mx.float32)
    rows = enumerate((30, 30, 5, 5))
    keys = BlockKeys(*(queries(seed, 2, n, 64, mx.float32) for seed, n in rows))
    k = mx.concatenate([keys.context_k, keys.block_k], axis=2)
    v = mx.concatenate([keys.context_v, keys.block_v], axis=2)
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask=stock_mask(30, 5, mask))
    assert mx.allclose(out, block_attention_reference(q, keys, 0.1, mask), rtol=1e-4, atol=1e-5)
