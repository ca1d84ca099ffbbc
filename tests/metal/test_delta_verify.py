"""delta_verify against float64, and its tape against a shorter block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.delta_verify import (
    DeltaRows,
    delta_verify,
    delta_verify_refusal,
)
from tests.metal.covering import Axes, Case
from tests.metal.device import ExecutorDevice
from tests.metal.exactness import DTYPES, Exact, check, exact
from tests.metal.executor.launch import ORDERS

AXES = Axes(
    pipeline={"dtype": tuple(DTYPES), "key_size": (64, 96, 128, 256)},
    shape={
        "rows": range(1, 33),
        "heads": ((1, 1), (2, 6)),
        "value_size": (33, 128),
        "order": ORDERS,
    },
)
WATCHED = Axes(
    pipeline={"dtype": tuple(DTYPES), "key_size": (64, 128)},
    shape={"rows": (1, 5, 16), "heads": ((1, 2), (2, 4)), "value_size": (9, 64)},
)


def delta_inputs(case: Case) -> tuple[DeltaRows, mx.array]:
    """Rows and a state of the size of real ones: unit keys, decays below one; no layers alike."""
    rng = np.random.default_rng([case["rows"], case.get("layer", 0)])
    (key_heads, value_heads), rows = case["heads"], case["rows"]
    dtype = DTYPES[case["dtype"]]

    def unit(*shape: int) -> mx.array:
        values = rng.standard_normal(shape)
        values /= np.linalg.norm(values, axis=-1, keepdims=True)
        return mx.array(values.astype(np.float32)).astype(dtype)

    def normal(*shape: int) -> mx.array:
        return mx.array(rng.standard_normal(shape).astype(np.float32))

    gates = (1, rows, value_heads)
    return DeltaRows(
        unit(1, rows, key_heads, case["key_size"]),
        unit(1, rows, key_heads, case["key_size"]),
        normal(1, rows, value_heads, case["value_size"]).astype(dtype),
        mx.array(rng.uniform(0.5, 1, gates).astype(np.float32)),
        mx.array(rng.uniform(0, 1, gates).astype(np.float32)).astype(dtype),
    ), normal(1, value_heads, case["value_size"], case["key_size"])


def truth(rows: DeltaRows, state: mx.array) -> tuple[Exact, Exact, Exact]:
    """Outputs, tape and state, in float64 and element by element as the paper writes them."""
    q, k, v = exact(rows.q), exact(rows.k), exact(rows.v)
    decay, strength, s = exact(rows.decay), exact(rows.strength), exact(state).copy()
    outputs, tape = np.zeros_like(v), np.zeros_like(v)
    group = v.shape[2] // k.shape[2]
    for row in range(v.shape[1]):
        for head in range(v.shape[2]):
            key, query = k[0, row, head // group], q[0, row, head // group]
            s[0, head] *= decay[0, row, head]
            delta = strength[0, row, head] * (v[0, row, head] - s[0, head] @ key)
            s[0, head] += np.outer(delta, key)
            outputs[0, row, head], tape[0, row, head] = s[0, head] @ query, delta
    return outputs, tape, s


def _run(case: Case, device: Device | None) -> None:
    rows, state = delta_inputs(case)
    run = delta_verify(rows, state, device=device)
    y, tape, after = truth(rows, state)
    assert run.y.dtype == rows.v.dtype
    check(run.y, y, 10.0)
    check(run.tape, tape, 10.0)
    check(run.after, after, 10.0)


@pytest.mark.over(AXES)
def test_equals_the_recurrence_in_float64(case: Case, device_in: Callable[[str], Device]) -> None:
    """An error in a state is carried through the rest of the conversation."""
    _run(case, device_in(case["order"]))


@pytest.mark.over(WATCHED)
def test_does_nothing_that_metal_forbids(case: Case, traced_device: Device) -> None:
    """Rows past the last value row must not be read or written."""
    _run(case, traced_device)


def test_without_a_device_the_reference_answers() -> None:
    """A machine without Metal is a normal case, not an error."""
    _run({"dtype": "float32", "rows": 5, "heads": (2, 4), "value_size": 16, "key_size": 64}, None)


def test_reads_and_writes_the_state_once(traced_device: Device) -> None:
    """A state read per row would make verification cost a decode step per row."""
    if not isinstance(traced_device, ExecutorDevice):
        pytest.skip("counts exist in the executor only")
    case = {"dtype": "bfloat16", "rows": 16, "heads": (1, 2), "value_size": 64, "key_size": 128}
    rows, state = delta_inputs(case)
    delta_verify(rows, state, device=traced_device)
    (run,) = traced_device.runs
    assert run.counts.buffers["state"].read_issued == state.nbytes
    assert run.counts.buffers["after"].written_issued == state.nbytes


Spoiled = Callable[[DeltaRows, mx.array], tuple[DeltaRows, mx.array]]
BAD: dict[str, tuple[Spoiled, str]] = {
    "key size": (
        lambda r, s: (replace(r, q=r.q[..., :40], k=r.k[..., :40]), s[..., :40]),
        "keys of 40",
    ),
    "heads": (
        lambda r, s: (
            replace(r, v=r.v[:, :, :3], decay=r.decay[..., :3], strength=r.strength[..., :3]),
            s[:, :3],
        ),
        "3 value heads for 2",
    ),
    "types": (lambda r, s: (replace(r, k=r.k.astype(mx.float16)), s), "one type"),
    "half state": (lambda r, s: (r, s.astype(mx.float16)), "state is"),
    "state": (lambda r, s: (r, s[:, :, :8]), "state is"),
    "decay": (lambda r, s: (replace(r, decay=r.decay[:, :2]), s), "decay is"),
    "rank": (lambda r, s: (replace(r, q=r.q[0]), s), "1, M, HK, DK"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses_what_it_cannot_take(name: str) -> None:
    """Bad input must raise with its reason, with and without Metal, never answer wrongly."""
    spoil, reason = BAD[name]
    case = {"dtype": "float32", "rows": 5, "heads": (2, 4), "value_size": 16, "key_size": 64}
    good = delta_inputs(case)
    with pytest.raises(BadRequest, match=reason):
        delta_verify(*spoil(*good), device=None)
    assert delta_verify_refusal(*good) is None
