"""attention_merge gives the attention of the unsplit keys."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.attention_merge import attention_merge
from dflash_mlx.metal.build import Device
from tests.metal.covering import Axes, Case
from tests.metal.exactness import DTYPES, check, drawn, exact
from tests.metal.executor.launch import ORDERS

HEADS, ROWS = 2, 3
AXES = Axes(
    pipeline={"size": (64, 80, 96, 128, 192, 256), "dtype": tuple(DTYPES)},
    shape={"splits": (2, 7, 16), "order": ORDERS},
)


def _parts(splits: int, size: int, empty: bool) -> mx.array:
    """Return unfinished rows; with `empty` the last split has no visible key."""
    parts = np.array(drawn(splits, (splits, HEADS, ROWS, size + 2), mx.float32, outliers=False))
    parts[..., size + 1] = 1 + np.abs(parts[..., size + 1])
    if empty:
        parts[-1, ..., :size] = 0
        parts[-1, ..., size] = -1e30
        parts[-1, ..., size + 1] = 0
    return mx.array(parts)


def _run(case: Case, device: Device | None) -> None:
    size, splits, dtype = case["size"], case["splits"], case["dtype"]
    parts = _parts(splits, size, empty=True)
    out = attention_merge(parts, DTYPES[dtype], device=device)
    values = exact(parts)
    weight = np.exp2(values[..., -2:-1] - values[..., -2:-1].max(axis=0))
    total = (values[..., -1:] * weight).sum(axis=0)
    truth = (values[..., :-2] * weight).sum(axis=0) / total
    magnitude = (np.abs(values[..., :-2]) * weight).sum(axis=0) / total
    check(out, truth[None], magnitude[None], slack=4)


@pytest.mark.over(AXES)
def test_merges_the_splits(case: Case, device_in: Callable[[str], Device]) -> None:
    """A split with a wrong weight, or a counted empty one, changes attention at long contexts."""
    _run(case, device_in(case["order"]))


@pytest.mark.parametrize("size", [80, 256])
def test_traced_run_has_no_reports(size: int, traced_device: Device) -> None:
    """Elements that no thread writes keep old memory contents."""
    _run({"size": size, "splits": 5, "dtype": "bfloat16"}, traced_device)


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    _run({"size": 64, "splits": 5, "dtype": "float32"}, None)


def test_rejects_parts_of_another_type() -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    with pytest.raises(BadRequest, match="float32"):
        attention_merge(_parts(2, 64, empty=False).astype(mx.float16), mx.float16, device=None)
    with pytest.raises(BadRequest, match="S, H, M"):
        attention_merge(_parts(2, 64, empty=False)[0], mx.float16, device=None)
