"""head_argmax against float64 logits, over types, bits, rows, vocabularies and list lengths."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.head_argmax import (
    Head,
    head_argmax,
    head_argmax_reference,
    head_argmax_refusal,
)
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.metal.quantized_verify import QuantizedWeight
from tests.metal.covering import Axes, Case
from tests.metal.device import ExecutorDevice
from tests.metal.exactness import DTYPES, Exact, check, drawn, exact
from tests.metal.executor.launch import ORDERS

AXES = Axes(
    pipeline={
        "dtype": tuple(DTYPES),
        "weights": ("dense", (4, 64), (8, 32), (6, 128)),
        "count": (2, 16, 1),
        "row_tiles": (1, 2, 3, 4),
    },
    extra={"cap": (None, 5.0), "tiles": (1, 2, 4), "slices": (1, 2, 8)},
    shape={
        "rows_in_tile": range(1, 9),
        "vocabulary": (33, 1111),
        "parts": (1, 3),
        "order": ORDERS,
    },
)
WATCHED = Axes(
    pipeline={
        "dtype": ("float32", "bfloat16"),
        "weights": ("dense", (4, 64), (8, 32)),
        "count": (2, 16),
        "cap": (None, 5.0),
        "row_tiles": (1, 2),
    },
    extra={"tiles": (1, 4), "slices": (1, 8)},
    shape={"rows_in_tile": (1, 5, 8), "vocabulary": (33, 300), "parts": (1, 2)},
)


def _head(case: Case) -> tuple[Head, Exact, Exact]:
    """Return a head, its matrix in float64, and the magnitudes of the added terms."""
    dtype = DTYPES[case["dtype"]]
    columns = (128 if case["weights"] == "dense" else case["weights"][1]) * case["parts"]
    full = drawn(1, (case["vocabulary"], columns), dtype, outliers=False) * 0.05
    if case["weights"] == "dense":
        return Head(full, 0.7, case["cap"]), exact(full), np.abs(exact(full))
    bits, group = case["weights"]
    packed, scales, biases = mx.quantize(full, group, bits)
    weight = QuantizedWeight(packed, scales, biases, group, bits)
    wide_scales, wide_biases = scales.astype(mx.float32), biases.astype(mx.float32)
    matrix = exact(mx.dequantize(packed, wide_scales, wide_biases, group, bits))
    bias = np.repeat(exact(biases), group, axis=1)
    return Head(weight, 0.7, case["cap"]), matrix, np.abs(matrix - bias) + np.abs(bias)


def _check(best: BestTokens, x: mx.array, head: Head, matrix: Exact, magnitude: Exact) -> None:
    """Assert that the listed tokens are the best ones, up to the error of their logits."""
    logits = exact(x) @ matrix.T * head.scale
    error = 1e-6 * (np.abs(exact(x)) @ magnitude.T) + 1e-6
    if head.cap is not None:
        logits = head.cap * np.tanh(logits / head.cap)
    tokens = np.array(best.tokens)
    listed = np.take_along_axis(logits, tokens, axis=-1)
    slack = np.take_along_axis(error, tokens, axis=-1)
    assert all(len(set(row)) == len(row) for row in tokens.tolist()), "a token is listed twice"
    check(best.logits, listed, slack / 1e-6)
    ordered = -np.sort(-logits, axis=-1)[:, : tokens.shape[1]]
    assert (np.abs(listed - ordered) <= 2 * slack).all()
    top = logits.max(axis=-1)
    check(best.log_sum_exp, top + np.log(np.exp(logits - top[:, None]).sum(axis=-1)), 20.0)


def _run(case: Case, device: Device) -> None:
    head, matrix, magnitude = _head(case)
    rows = 8 * (case["row_tiles"] - 1) + case["rows_in_tile"]
    x = drawn(2, (rows, matrix.shape[1]), DTYPES[case["dtype"]], outliers=False)
    tiles = case["tiles"] if rows <= 16 else min(case["tiles"], 2)
    geometry = MatrixGeometry(tiles, case["slices"])
    best = head_argmax(x, head, case["count"], device=device, geometry=geometry)
    assert best.tokens.dtype == mx.int32
    _check(best, x, head, matrix, magnitude)


@pytest.mark.over(AXES)
def test_lists_the_best_tokens(case: Case, device_in: Callable[[str], Device]) -> None:
    """A wrong best token changes the text; a wrong log-sum-exp changes the confidence."""
    _run(case, device_in(case["order"]))


@pytest.mark.over(WATCHED)
def test_traced_run_has_no_reports(case: Case, traced_device: Device) -> None:
    """Data races in the lists across lanes and strips may not show in the result."""
    _run(case, traced_device)


def test_of_equal_logits_the_lowest_token_is_listed(ordered_device: Device) -> None:
    """The choice between equal logits must not depend on strips or lanes."""
    rows = drawn(1, (40, 64), mx.float32, outliers=False)
    head = Head(mx.tile(rows, (9, 1)))
    x = drawn(2, (16, 64), mx.float32, outliers=False)
    best = head_argmax(x, head, 4, device=ordered_device)
    reference = head_argmax_reference(x, head, 4)
    assert mx.array_equal(best.tokens, reference.tokens)
    first = np.array(best.tokens)
    assert (np.diff(first, axis=1) == 40).all()


def test_a_strip_has_several_tiles(traced_device: Device) -> None:
    """All simdgroups must finish a tile before the next one overwrites it."""
    x, w = (drawn(n, (n, 64), mx.float32, outliers=False) * 0.2 for n in (8, 2100))
    geometry = MatrixGeometry(1, 2)  # 263 tiles in 132 strips
    best = head_argmax(x, Head(w), 2, device=traced_device, geometry=geometry)
    _check(best, x, Head(w), exact(w), np.abs(exact(w)))


def test_all_logits_far_below_zero(device: Device) -> None:
    """A running sum that starts at exp(0) loses logits below -90 and returns -inf."""
    x = mx.abs(drawn(1, (5, 64), mx.float32, outliers=False))
    w = -6 * mx.abs(drawn(2, (300, 64), mx.float32, outliers=False))
    best = head_argmax(x, Head(w), 2, device=device)
    logits = exact(x) @ exact(w).T
    assert logits.max() < -90
    top = logits.max(axis=-1)
    expected = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
    np.testing.assert_allclose(np.array(best.log_sum_exp), expected, rtol=1e-5)


def test_never_writes_the_logits(traced_device: Device) -> None:
    """The kernel exists to avoid writing and reading [rows, vocabulary] logits."""
    if not isinstance(traced_device, ExecutorDevice):
        pytest.skip("counts exist in the executor only")
    x, w = drawn(1, (16, 8), mx.bfloat16), drawn(2, (8192, 8), mx.bfloat16)
    head_argmax(x, Head(w), 2, device=traced_device)
    first, _ = traced_device.runs
    written = sum(b.written_issued for b in first.counts.buffers.values())
    assert written <= 256 * 16 * (2 * 8 + 8) < 16 * 8192 * 2
    assert first.counts.buffers["w"].read_issued == w.nbytes


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    case = {"dtype": "float32", "weights": (4, 64), "cap": 5.0, "vocabulary": 300, "parts": 2}
    head, matrix, magnitude = _head(case)
    x = drawn(2, (5, 128), mx.float32, outliers=False)
    _check(head_argmax(x, head, 16, device=None), x, head, matrix, magnitude)


BAD: dict[str, tuple[Callable[[mx.array, mx.array], tuple[mx.array, Head, int]], str]] = {
    "33 rows": (lambda x, w: (mx.tile(x, (9, 1))[:33], Head(w), 2), "33 rows"),
    "rank": (lambda x, w: (x[None], Head(w), 2), r"\[M, K\]"),
    "K": (lambda x, w: (x[:, :30], Head(w), 2), r"\[12, 30\]"),
    "no token": (lambda x, w: (x, Head(w), 0), "count is 0 for 12"),
    "too many": (lambda x, w: (x, Head(w), 13), "count is 13 for 12"),
    "cap": (lambda x, w: (x, Head(w, cap=-1.0), 2), "soft cap is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_unsupported_inputs(name: str) -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    spoil, reason = BAD[name]
    x, w = drawn(1, (4, 40), mx.float32), drawn(2, (12, 40), mx.float32)
    with pytest.raises(BadRequest, match=reason):
        head_argmax(*spoil(x, w), device=None)
    assert head_argmax_refusal(x, Head(w), 2) is None
