"""delta_rollback gives the very state that a shorter block would have left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.delta_rollback import (
    DeltaTape,
    delta_rollback,
    delta_rollback_reference,
    delta_rollback_refusal,
)
from dflash_mlx.metal.delta_verify import DeltaRows, delta_verify
from tests.metal.covering import Axes, Case
from tests.metal.exactness import DTYPES
from tests.metal.executor.launch import ORDERS
from tests.metal.test_delta_verify import delta_case

AXES = Axes(
    pipeline={"dtype": tuple(DTYPES), "key_size": (64, 128, 256), "window": (3, 1)},
    shape={
        "rows": (1, 2, 5, 16, 32),
        "kept": (0, 1, 3, 100),
        "heads": ((1, 1), (2, 4)),
        "value_size": (33,),
        "layers": (1, 3),
        "order": ORDERS,
    },
)
WATCHED = Axes(
    pipeline={"dtype": ("bfloat16", "float32"), "key_size": (64,), "window": (3,)},
    shape={"rows": (5,), "kept": (0, 3, 5), "heads": ((1, 2),), "value_size": (9,), "layers": (2,)},
)


def _layers(
    case: Case, device: Device | None
) -> tuple[DeltaTape, list[tuple[DeltaRows, mx.array]]]:
    """The tape of all layers, and each layer's rows with its state before the block."""
    inputs = [delta_case({**case, "layer": layer}) for layer in range(case["layers"])]
    runs = [delta_verify(rows, state, device=device) for rows, state in inputs]
    rng = np.random.default_rng(5)
    channels = 70
    convolved = rng.standard_normal((case["layers"], case["window"] + case["rows"], channels))
    tape = DeltaTape(
        mx.concatenate([state for _, state in inputs]),
        mx.concatenate([run.tape for run in runs]),
        mx.concatenate([rows.k for rows, _ in inputs]),
        mx.concatenate([rows.decay for rows, _ in inputs]),
        mx.array(convolved.astype(np.float32)).astype(DTYPES[case["dtype"]]),
    )
    return tape, inputs


def _run(case: Case, device: Device | None) -> None:
    tape, inputs = _layers(case, device)
    restored = delta_rollback(mx.array(case["kept"], mx.int32), tape, device=device)
    kept = min(case["kept"], case["rows"])
    for layer, (rows, state) in enumerate(inputs):
        expected = state
        if kept:
            shorter = DeltaRows(*(getattr(rows, name)[:, :kept] for name in rows.__annotations__))
            expected = delta_verify(shorter, state, device=device).after
        assert mx.array_equal(restored.state[layer], expected[0]), f"layer {layer}"
    window = tape.rows[:, kept : kept + case["window"]]
    assert mx.array_equal(restored.window, window)


@pytest.mark.over(AXES)
def test_is_bit_for_bit_the_shorter_block(case: Case, device_in: Callable[[str], Device]) -> None:
    """A state that differs by a bit after refusals makes text depend on what was refused."""
    _run(case, device_in(case["order"]))


@pytest.mark.over(WATCHED)
def test_does_nothing_that_metal_forbids(case: Case, traced_device: Device) -> None:
    """The rows behind the kept ones belong to refused tokens."""
    _run(case, traced_device)


def test_without_a_device_the_reference_answers() -> None:
    """A machine without Metal is a normal case, not an error."""
    case = {"dtype": "float32", "key_size": 64, "window": 3, "rows": 6, "heads": (2, 4)}
    for kept in (0, 2, 6):
        _run({**case, "kept": kept, "value_size": 16, "layers": 2}, None)


def _good() -> DeltaTape:
    case = {"dtype": "float32", "key_size": 64, "window": 3, "rows": 6, "heads": (2, 4)}
    tape, _ = _layers({**case, "value_size": 16, "layers": 2}, None)
    return tape


BAD: dict[str, tuple[Callable[[DeltaTape], DeltaTape], str]] = {
    "window": (lambda t: replace(t, rows=t.rows[:, :6]), "a window before"),
    "state": (lambda t: replace(t, state=t.state[:1]), "state is"),
    "half tape": (lambda t: replace(t, tape=t.tape.astype(mx.float16)), "tape is"),
    "decay": (lambda t: replace(t, decay=t.decay[:, :2]), "decay is"),
    "rank": (lambda t: replace(t, k=t.k[0]), "L, M, HK, DK"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses_what_it_cannot_take(name: str) -> None:
    """Bad input must raise with its reason, with and without Metal, never answer wrongly."""
    spoil, reason = BAD[name]
    good = _good()
    kept = mx.array(2, mx.int32)
    with pytest.raises(BadRequest, match=reason):
        delta_rollback(kept, spoil(good), device=None)
    with pytest.raises(BadRequest, match="one int32"):
        delta_rollback(mx.array([1, 2], mx.int32), good, device=None)
    assert delta_rollback_refusal(kept, good) is None
    assert delta_rollback_reference(kept, good).window.shape == (2, 3, 70)
