"""head_merge gives the best tokens of the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.head_merge import Strips, head_merge
from tests.metal.covering import Axes, Case
from tests.metal.exactness import check, exact
from tests.metal.executor.launch import ORDERS

AXES = Axes(
    pipeline={"count": (2, 16, 1, 32)},
    shape={"strips": (1, 3, 40, 256), "rows": (1, 2, 17), "order": ORDERS},
)


def _strips(case: Case) -> Strips:
    """Return lists of logits with many ties, sorted within each strip, and their masses."""
    rng = np.random.default_rng(case["strips"])
    shape = (case["strips"], case["rows"], case["count"])
    values = -np.sort(-rng.integers(-9, 9, shape).astype(np.float32), axis=-1)
    ids = rng.permutation(shape[0] * shape[2] * 3)[: shape[0] * shape[2]]
    ids = np.sort(ids.reshape(shape[0], 1, shape[2]), axis=-1)
    masses = np.stack([values[..., 0], 1 + rng.random(shape[:2])], axis=-1)
    return Strips(
        mx.array(values),
        mx.array(np.broadcast_to(ids, shape).astype(np.int32)),
        mx.array(masses.astype(np.float32)),
    )


def _run(case: Case, device: Device | None) -> None:
    strips = _strips(case)
    best = head_merge(strips, device=device)
    values, ids = np.array(strips.values), np.array(strips.ids)
    for row in range(case["rows"]):
        pairs = zip(values[:, row].flat, ids[:, row].flat, strict=True)
        ordered = sorted((-value, int(token)) for value, token in pairs)[: case["count"]]
        assert np.array(best.tokens[row]).tolist() == [token for _, token in ordered]
        assert np.array(best.logits[row]).tolist() == [-value for value, _ in ordered]
    masses = exact(strips.masses)
    total = (masses[..., 1] * np.exp(masses[..., 0])).sum(axis=0)
    check(best.log_sum_exp, np.log(total), 20.0)


@pytest.mark.over(AXES)
def test_lists_the_best_of_all_strips(case: Case, device_in: Callable[[str], Device]) -> None:
    """Ties across strips must select the lowest token id, independent of the number of strips."""
    _run(case, device_in(case["order"]))


@pytest.mark.parametrize("count", [2, 16])
def test_traced_run_has_no_reports(count: int, traced_device: Device) -> None:
    """Eight simdgroups exchange lists through threadgroup memory."""
    _run({"count": count, "strips": 40, "rows": 2}, traced_device)


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    _run({"count": 16, "strips": 40, "rows": 3}, None)


def test_rejects_unsupported_inputs() -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    good = _strips({"count": 2, "strips": 3, "rows": 2})
    with pytest.raises(BadRequest, match="ids is"):
        head_merge(Strips(good.values, good.ids[:1], good.masses), device=None)
    with pytest.raises(BadRequest, match="masses is"):
        head_merge(Strips(good.values, good.ids, good.masses[..., :1]), device=None)
