"""grouped_conv against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.grouped_conv import grouped_conv, grouped_conv_refusal
from tests.metal.covering import Axes, Case
from tests.metal.exactness import DTYPES, check, drawn, exact
from tests.metal.executor.launch import ORDERS

AXES = Axes(
    pipeline={
        "dtype": tuple(DTYPES),
        "kernel_size": (2, 1, 4),
        "group": (16, 1, 8),
    },
    extra={"weights": tuple(DTYPES)},
    shape={"rows": range(1, 33), "groups": (1, 3, 20), "order": ORDERS},
)


def _inputs(case: Case) -> tuple[mx.array, mx.array, mx.array]:
    dtype, channels = DTYPES[case["dtype"]], case["group"] * case["groups"]
    return (
        drawn(1, (case["rows"], channels), dtype),
        drawn(2, (case["kernel_size"], channels), DTYPES[case["weights"]], outliers=False),
        drawn(3, (case["rows"], case["kernel_size"], case["groups"]), dtype, outliers=False),
    )


def _run(case: Case, device: Device | None) -> None:
    x, base, change = _inputs(case)
    y = grouped_conv(x, base, change, device=device)
    assert y.dtype == x.dtype
    values, fixed, moving = exact(x), exact(base), exact(change)
    truth, magnitude = np.zeros(x.shape), np.zeros(x.shape)
    for row in range(case["rows"]):
        for position in range(min(case["kernel_size"], row + 1)):
            for channel in range(x.shape[1]):
                coefficient = (
                    fixed[position, channel] + moving[row, position, channel // case["group"]]
                )
                product = coefficient * values[row - position, channel]
                truth[row, channel] += product
                magnitude[row, channel] += abs(product)
    check(y, truth, magnitude + np.abs(truth) + 1)


@pytest.mark.over(AXES)
def test_equals_the_formula(case: Case, device_in: Callable[[str], Device]) -> None:
    """A kernel position that reads the wrong row mixes another slot into a row."""
    _run(case, device_in(case["order"]))


@pytest.mark.parametrize("rows", [1, 8])
def test_traced_run_has_no_reports(rows: int, traced_device: Device) -> None:
    """The last threads have no channel and must not access memory."""
    case = {"dtype": "bfloat16", "weights": "float32", "kernel_size": 2, "group": 16, "groups": 3}
    _run({**case, "rows": rows}, traced_device)


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    case = {"dtype": "float32", "weights": "float32", "kernel_size": 2, "group": 16, "groups": 3}
    _run({**case, "rows": 5}, None)


def test_the_identity_kernel_copies_the_rows(device: Device) -> None:
    """Base (1, 0) without change is the identity, from which DFlash 2 training starts."""
    x = drawn(1, (8, 64), mx.bfloat16)
    base = mx.stack([mx.ones(64), mx.zeros(64)]).astype(mx.bfloat16)
    y = grouped_conv(x, base, mx.zeros((8, 2, 4), mx.bfloat16), device=device)
    assert mx.array_equal(x, y)


def test_rejects_unsupported_inputs() -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    case = {"dtype": "float32", "weights": "float32", "kernel_size": 2, "group": 16, "groups": 3}
    x, base, change = _inputs({**case, "rows": 5})
    assert grouped_conv_refusal(x, base, change) is None
    for bad, reason in (
        ((x[0], base, change), "B, C"),
        ((x[:, :40], base[:, :40], change), "3 groups for 40"),
        ((x, base[:1], change), "change is"),
        ((x, base, change.astype(mx.float16)), "one type"),
        ((x.astype(mx.int32), base, change), "int32"),
    ):
        with pytest.raises(BadRequest, match=reason):
            grouped_conv(*bad, device=None)
