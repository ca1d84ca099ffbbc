"""Kernels of MLX and mlx-lm run unchanged in the executor with correct results.

They work on Macs, so a failure here is an error of the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import gated_delta

from dflash_mlx.metal.build import Device, Launch
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_verify_reference
from tests.metal import stock
from tests.metal.executor import Executor, Objects, Run
from tests.metal.executor.launch import ORDERS

HARMLESS = "same value written by several threads"


@pytest.fixture
def on_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm creates its kernels only with Metal, although creating them does not need it."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)


def _gated_delta_inputs(dtype: mx.Dtype) -> tuple[mx.array, ...]:
    batch, steps, k_heads, v_heads, dk, dv = 2, 5, 1, 2, 128, 16
    keys = mx.random.split(mx.random.key(4), 6)
    q, k = (
        mx.random.normal((batch, steps, k_heads, dk), key=keys[i]).astype(dtype) for i in (0, 1)
    )
    v = mx.random.normal((batch, steps, v_heads, dv), key=keys[2]).astype(dtype)
    g = mx.random.uniform(0.5, 1.0, (batch, steps, v_heads), key=keys[3])
    beta = mx.random.uniform(0.0, 0.1, (batch, steps, v_heads), key=keys[4]).astype(dtype)
    state = mx.random.normal((batch, v_heads, dv, dk), key=keys[5])
    return q / 8, k / 8, v, g, beta, state


def _gated_delta(
    executor: Executor, kernel: Any, inputs: Sequence[mx.array], rows: int, threads: int
) -> Run:
    q, k, v, _, _, state = inputs[:6]
    batch, steps, k_heads, dk = k.shape
    v_heads, dv = v.shape[2:]
    return executor.run(
        kernel,
        [*inputs[:6], mx.array(steps), *inputs[6:]],
        template=[
            ("InT", q.dtype),
            ("StT", state.dtype),
            ("Dk", dk),
            ("Dv", dv),
            ("Hk", k_heads),
            ("Hv", v_heads),
        ],
        grid=(32, dv // rows, batch * v_heads),
        threadgroup=(32, threads, 1),
        output_shapes=[v.shape, state.shape],
        output_dtypes=[q.dtype, state.dtype],
    )


@pytest.mark.usefixtures("on_metal")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_gated_delta_step(objects: Objects, dtype: mx.Dtype) -> None:
    """mlx-lm's recurrent step in each lane order and traced, against its operations."""
    kernel = gated_delta._make_gated_delta_kernel(has_mask=False, vectorized=False)
    inputs = _gated_delta_inputs(dtype)
    y, state = gated_delta.gated_delta_ops(*inputs)
    for executor in [Executor(True, objects=objects)] + [
        Executor(order=order, seed=9, objects=objects) for order in ORDERS
    ]:
        run = _gated_delta(executor, kernel, inputs, 1, 4)
        assert not run.reports
        assert mx.allclose(run.outputs[0], y, rtol=1e-2, atol=1e-6 if dtype == mx.float32 else 1e-2)
        assert mx.allclose(run.outputs[1], state, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_metal")
def test_gated_delta_masked_reports_only_harmless_writes(objects: Objects) -> None:
    """All 32 lanes of mlx-lm's masked kernel write the same zero, which is not a data race."""
    kernel = gated_delta._make_gated_delta_kernel(has_mask=True, vectorized=False)
    inputs = _gated_delta_inputs(mx.float32)
    mask = mx.array([[True, True, False, True, False], [False, True, True, True, True]])
    y, state = gated_delta.gated_delta_ops(*inputs, mask)
    run = _gated_delta(Executor(True, objects=objects), kernel, (*inputs, mask), 1, 4)
    assert {r.kind for r in run.reports} == {HARMLESS}
    assert mx.allclose(
        mx.where(mask[..., None, None], run.outputs[0] - y, 0), mx.array(0.0), atol=1e-5
    )
    assert mx.allclose(run.outputs[1], state, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_metal")
def test_gated_delta_packed_equals_its_comparator_bit_for_bit(objects: Objects) -> None:
    """mlx-lm documents equal bits for both kernels; an error in the shuffles changes them."""
    inputs = _gated_delta_inputs(mx.bfloat16)
    executor = Executor(True, objects=objects)
    packed = _gated_delta(executor, gated_delta._make_gated_delta_packed_kernel(), inputs, 8, 2)
    plain = _gated_delta(executor, gated_delta._make_gated_delta_kernel_xtree(), inputs, 1, 4)
    assert not packed.reports + plain.reports
    for ours, theirs in zip(packed.outputs, plain.outputs, strict=True):
        assert mx.array_equal(ours, theirs)


def _close(y: mx.array, reference: mx.array) -> bool:
    scale = mx.abs(reference).max().item()
    return bool(mx.abs(y.astype(mx.float32) - reference).max().item() <= 0.01 * scale)


@pytest.mark.parametrize("launch", [stock.qmv_wide, stock.qmm_t])
@pytest.mark.parametrize(("rows", "columns", "inputs", "group", "bits"), [
    (16, 72, 512, 64, 4), (5, 40, 320, 32, 3), (7, 64, 256, 128, 8),
])  # fmt: skip
def test_stock_quantized_matmul(
    traced_device: Device,
    launch: Callable[[mx.array, QuantizedWeight], Launch],
    rows: int,
    columns: int,
    inputs: int,
    group: int,
    bits: int,
) -> None:
    """MLX's vector and matrix kernels, traced: no reports, correct products, ragged sizes."""
    x = mx.random.normal((rows, inputs), key=mx.random.key(1)).astype(mx.bfloat16)
    full = mx.random.normal((columns, inputs), key=mx.random.key(2)).astype(mx.bfloat16)
    weight = QuantizedWeight(*mx.quantize(full, group, bits), group, bits)
    (y,) = traced_device.run(launch(x, weight))
    assert _close(y, quantized_verify_reference(x.astype(mx.float32), weight))


@pytest.mark.parametrize(("rows", "columns", "inputs"), [(5, 30, 520), (12, 33, 128)])
def test_stock_dense_matmul(traced_device: Device, rows: int, columns: int, inputs: int) -> None:
    """MLX's dense vector kernel, traced."""
    x = mx.random.normal((rows, inputs), key=mx.random.key(1)).astype(mx.bfloat16)
    w = mx.random.normal((columns, inputs), key=mx.random.key(2)).astype(mx.bfloat16)
    (y,) = traced_device.run(stock.gemv_wide(x, w))
    assert _close(y, x.astype(mx.float32) @ w.astype(mx.float32).T)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dim", [64, 128])
def test_stock_attention(traced_device: Device, dim: int, causal: bool) -> None:
    """MLX's vector attention over grouped heads, traced."""
    keys = mx.random.split(mx.random.key(3), 3)
    q = mx.random.normal((4, 3, dim), key=keys[0])
    k, v = (mx.random.normal((2, 75, dim), key=key) for key in keys[1:])
    (out,) = traced_device.run(stock.sdpa_vector(q, k, v, causal=causal))
    expected = mx.fast.scaled_dot_product_attention(
        q[None], k[None], v[None], scale=dim**-0.5, mask="causal" if causal else None
    )[0]
    assert mx.allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dim", "rows", "length"), [(64, 16, 96), (128, 9, 75)])
def test_stock_tiled_attention(traced_device: Device, dim: int, rows: int, length: int) -> None:
    """MLX's matrix attention with partial tiles of rows and keys, traced."""
    keys = mx.random.split(mx.random.key(3), 3)
    q = mx.random.normal((4, rows, dim), key=keys[0])
    k, v = (mx.random.normal((2, length, dim), key=key) for key in keys[1:])
    (out,) = traced_device.run(stock.tiled_attention(q, k, v))
    expected = mx.fast.scaled_dot_product_attention(
        q[None], k[None], v[None], scale=dim**-0.5, mask="causal"
    )[0]
    assert mx.allclose(out, expected, rtol=1e-3, atol=1e-4)
