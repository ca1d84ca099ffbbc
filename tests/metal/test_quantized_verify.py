"""quantized_verify against float64, over types, bits, group sizes, rows, edges and lane orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.quantized_verify import (
    QuantizedWeight,
    quantized_verify,
    quantized_verify_reference,
    quantized_verify_refusal,
)
from tests.metal.covering import Axes, Case
from tests.metal.device import ExecutorDevice
from tests.metal.exactness import DTYPES, check, drawn, exact
from tests.metal.executor.launch import ORDERS

AXES = Axes(
    pipeline={
        "dtype": tuple(DTYPES),
        "bits": (4, 8, 2, 3, 5, 6),
        "group": (32, 64, 128),
        "row_tiles": (1, 2, 3, 4),
    },
    extra={"scales": ("same", "float32"), "tiles": (1, 2, 4), "slices": (1, 2, 8)},
    shape={
        "rows_in_tile": range(1, 9),
        "columns": (9, 131),
        "groups": (1, 9),
        "order": ORDERS,
    },
    every=True,
)
WATCHED = Axes(
    pipeline={
        "dtype": tuple(DTYPES),
        "bits": (4, 8, 3),
        "group": (32, 128),
        "row_tiles": (1, 2, 4),
    },
    extra={"scales": ("same",), "tiles": (1, 2, 4), "slices": (2, 8)},
    shape={
        "rows_in_tile": (1, 5, 8),
        "columns": (9, 64, 131),
        "groups": (1, 9),
        "order": ("random",),
    },
)


def _weight(case: Case, columns: int) -> QuantizedWeight:
    group, bits = case["group"], case["bits"]
    dtype = DTYPES[case["dtype"]]
    full = drawn(1, (columns, group * case["groups"]), mx.float32) * 0.2
    packed, scales, biases = mx.quantize(full, group, bits)
    kept = mx.float32 if case["scales"] == "float32" else dtype
    return QuantizedWeight(packed, scales.astype(kept), biases.astype(kept), group, bits)


def _run(case: Case, device: Device) -> None:
    rows = max(2, 8 * (case["row_tiles"] - 1) + case["rows_in_tile"])
    # At least 8 scales: MLX passes smaller arrays in another address space.
    columns = max(case["columns"], 8)
    weight = _weight(case, columns)
    x = drawn(2, (rows, case["group"] * case["groups"]), DTYPES[case["dtype"]])
    tiles = case["tiles"] if rows <= 16 else min(case["tiles"], 2)
    geometry = MatrixGeometry(tiles, case["slices"])
    y = quantized_verify(x, weight, device=device, geometry=geometry)
    assert y.dtype == x.dtype
    check(y, exact(x) @ _dequantized(weight).T, np.abs(exact(x)) @ _magnitude(weight).T)


def _dequantized(weight: QuantizedWeight) -> np.ndarray:
    full = mx.dequantize(
        weight.packed,
        weight.scales.astype(mx.float32),
        weight.biases.astype(mx.float32),
        weight.group_size,
        weight.bits,
    )
    return exact(full)


def _magnitude(weight: QuantizedWeight) -> np.ndarray:
    """Return |s * q| + |b|: the kernel sums the two parts of a weight separately."""
    bias = np.repeat(exact(weight.biases), weight.group_size, axis=1)
    return np.abs(_dequantized(weight) - bias) + np.abs(bias)


@pytest.mark.over(AXES)
def test_equals_the_float64_product(case: Case, device_in: Callable[[str], Device]) -> None:
    """An error at one bit width or edge changes tokens without any message."""
    _run(case, device_in(case["order"]))


@pytest.mark.over(WATCHED)
def test_traced_run_has_no_reports(case: Case, traced_device: Device) -> None:
    """Data races and reads out of bounds may give correct results here and wrong ones on a GPU."""
    _run(case, traced_device)


@pytest.mark.parametrize("rows", [5, 8, 16])
def test_reads_weights_once_and_wastes_no_multiply(rows: int, traced_device: Device) -> None:
    """Stock MLX reads the weights two to four times for 6 to 16 rows."""
    if not isinstance(traced_device, ExecutorDevice):
        pytest.skip("counts exist in the executor only")
    case = {"group": 64, "bits": 4, "dtype": "bfloat16", "groups": 8, "scales": "same"}
    columns, inputs = 64, 512
    x = drawn(2, (rows, inputs), mx.bfloat16)
    quantized_verify(x, _weight(case, columns), device=traced_device)
    (run,) = traced_device.runs
    packed = run.counts.buffers["w"]
    assert packed.read_issued == packed.unique_read == packed.size
    assert run.counts.multiplies == -(-rows // 8) * (columns // 8) * (inputs // 8)


def test_the_shipped_geometry_is_right_at_a_real_width(device: Device) -> None:
    """The other cases set the geometry; this one uses the default of the launcher."""
    case = {"group": 64, "bits": 4, "dtype": "bfloat16", "groups": 40, "scales": "same"}
    weight = _weight(case, 1024)
    x = drawn(2, (16, 2560), mx.bfloat16)
    y = quantized_verify(x, weight, device=device)
    check(y, exact(x) @ _dequantized(weight).T, np.abs(exact(x)) @ _magnitude(weight).T)


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    weight = _weight(
        {"group": 64, "bits": 4, "dtype": "float32", "groups": 2, "scales": "same"}, 16
    )
    x = drawn(2, (4, 128), mx.float32)
    y = quantized_verify(x, weight, device=None)
    assert mx.array_equal(y, quantized_verify_reference(x, weight))
    check(y, exact(x) @ _dequantized(weight).T, np.abs(exact(x)) @ _magnitude(weight).T)


def _good() -> tuple[mx.array, QuantizedWeight]:
    weight = _weight(
        {"group": 64, "bits": 4, "dtype": "float32", "groups": 2, "scales": "same"}, 16
    )
    return drawn(2, (4, 128), mx.float32), weight


Spoiled = Callable[[mx.array, QuantizedWeight], tuple[mx.array, QuantizedWeight]]
BAD: dict[str, tuple[Spoiled, str]] = {
    "one row": (lambda x, w: (x[:1], w), "1 rows"),
    "33 rows": (lambda x, w: (mx.tile(x, (9, 1))[:33], w), "33 rows"),
    "rank": (lambda x, w: (x[None], w), r"\[M, K\]"),
    "int32": (lambda x, w: (x.astype(mx.int32), w), "int32"),
    "K": (lambda x, w: (x[:, :64], w), r"\[16, 8\]"),
    "K no multiple": (lambda x, w: (x[:, :100], w), "multiple of the group size"),
    "group": (lambda x, w: (x, replace(w, group_size=16)), "group_size is 16"),
    "bits": (lambda x, w: (x, replace(w, bits=7)), "7 bits"),
    "packed dtype": (lambda x, w: (x, replace(w, packed=w.packed.astype(mx.int32))), "uint32"),
    "scales shape": (lambda x, w: (x, replace(w, scales=w.scales[:, :1])), "scales is"),
    "biases shape": (lambda x, w: (x, replace(w, biases=w.biases[:8])), "biases is"),
    "two types": (lambda x, w: (x, replace(w, scales=w.scales.astype(mx.float16))), "one type"),
    "tiny": (
        lambda x, w: (x, QuantizedWeight(w.packed[:2], w.scales[:2], w.biases[:2], 64, 4)),
        "4 elements",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_unsupported_inputs(name: str) -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    spoil, reason = BAD[name]
    x, weight = spoil(*_good())
    with pytest.raises(BadRequest, match=reason):
        quantized_verify(x, weight, device=None)
    assert quantized_verify_refusal(*_good()) is None
