"""dense_verify against float64, over types, rows, ragged sizes, geometries and lane orders."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.dense_verify import (
    dense_verify,
    dense_verify_reference,
    dense_verify_refusal,
)
from dflash_mlx.metal.geometry import MatrixGeometry
from tests.metal.covering import Axes, Case
from tests.metal.device import ExecutorDevice
from tests.metal.exactness import DTYPES, check, drawn, exact
from tests.metal.executor.launch import ORDERS

AXES = Axes(
    pipeline={"dtype": tuple(DTYPES), "weights": tuple(DTYPES), "row_tiles": (1, 2, 3, 4)},
    extra={"tiles": (1, 2, 4), "slices": (1, 2, 8)},
    shape={
        "rows_in_tile": range(1, 9),
        "columns": (1, 131),
        "inputs": (8, 31, 100, 515),
        "order": ORDERS,
    },
    every=True,
)
WATCHED = Axes(
    pipeline={"dtype": ("bfloat16", "float32"), "weights": tuple(DTYPES), "row_tiles": (1, 2, 4)},
    extra={"tiles": (1, 2, 4), "slices": (1, 8)},
    shape={"rows_in_tile": (1, 5, 8), "columns": (9, 64), "inputs": (31, 64, 515)},
)


def _run(case: Case, device: Device) -> None:
    rows = max(2, 8 * (case["row_tiles"] - 1) + case["rows_in_tile"])
    x = drawn(1, (rows, case["inputs"]), DTYPES[case["dtype"]])
    w = drawn(2, (case["columns"], case["inputs"]), DTYPES[case["weights"]], outliers=False)
    tiles = case["tiles"] if rows <= 16 else min(case["tiles"], 2)
    y = dense_verify(x, w, device=device, geometry=MatrixGeometry(tiles, case["slices"]))
    assert y.dtype == x.dtype
    check(y, exact(x) @ exact(w).T, np.abs(exact(x)) @ np.abs(exact(w)).T)


@pytest.mark.over(AXES)
def test_equals_the_float64_product(case: Case, device_in: Callable[[str], Device]) -> None:
    """An error in the last block or at a ragged edge changes few outputs."""
    _run(case, device_in(case["order"]))


@pytest.mark.over(WATCHED)
def test_traced_run_has_no_reports(case: Case, traced_device: Device) -> None:
    """A read past the last weight can crash on a GPU and passes unnoticed on a CPU."""
    _run(case, traced_device)


@pytest.mark.parametrize("rows", [5, 8, 16, 32])
def test_reads_weights_once_and_wastes_no_multiply(rows: int, traced_device: Device) -> None:
    """Stock MLX reads bfloat16 weights twice from 6 rows on."""
    if not isinstance(traced_device, ExecutorDevice):
        pytest.skip("counts exist in the executor only")
    columns, inputs = 64, 512
    w = drawn(2, (columns, inputs), mx.bfloat16)
    dense_verify(drawn(1, (rows, inputs), mx.bfloat16), w, device=traced_device)
    (run,) = traced_device.runs
    weights = run.counts.buffers["w"]
    assert weights.read_issued == weights.unique_read == weights.size
    assert run.counts.multiplies == -(-rows // 8) * (columns // 8) * (inputs // 8)


def test_the_shipped_geometry_is_right_at_a_real_width(device: Device) -> None:
    """The other cases set the geometry; this one uses the default of the launcher."""
    x, w = drawn(1, (16, 2560), mx.bfloat16), drawn(2, (1024, 2560), mx.bfloat16)
    y = dense_verify(x, w, device=device)
    check(y, exact(x) @ exact(w).T, np.abs(exact(x)) @ np.abs(exact(w)).T)


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    x, w = drawn(1, (4, 40), mx.bfloat16), drawn(2, (12, 40), mx.bfloat16)
    y = dense_verify(x, w, device=None)
    assert mx.array_equal(y, dense_verify_reference(x, w))
    check(y, exact(x) @ exact(w).T, np.abs(exact(x)) @ np.abs(exact(w)).T)


Spoiled = Callable[[mx.array, mx.array], tuple[mx.array, mx.array]]
BAD: dict[str, tuple[Spoiled, str]] = {
    "one row": (lambda x, w: (x[:1], w), "1 rows"),
    "33 rows": (lambda x, w: (mx.tile(x, (9, 1))[:33], w), "33 rows"),
    "rank": (lambda x, w: (x[None], w), r"\[M, K\]"),
    "int32": (lambda x, w: (x, w.astype(mx.int32)), "int32"),
    "K": (lambda x, w: (x[:, :30], w), r"\[12, 30\]"),
    "tiny": (lambda x, w: (x[:, :3], w[:2, :3]), "6 elements"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_unsupported_inputs(name: str) -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    spoil, reason = BAD[name]
    good = drawn(1, (4, 40), mx.float32), drawn(2, (12, 40), mx.float32)
    with pytest.raises(BadRequest, match=reason):
        dense_verify(*spoil(*good), device=None)
    assert dense_verify_refusal(*good) is None
