"""verify_attention against float64, over types, head sizes, groups, contexts and windows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.attention_geometry import (
    AttentionGeometry,
    attention_geometries,
    key_block_of,
)
from dflash_mlx.metal.build import Device, Launch
from dflash_mlx.metal.verify_attention import (
    verify_attention,
    verify_attention_reference,
    verify_attention_refusal,
)
from tests.metal.attention_cases import attention, cached, queries
from tests.metal.count.counter import LaunchRecorder
from tests.metal.covering import Axes, Case
from tests.metal.device import ExecutorDevice
from tests.metal.exactness import DTYPES, Exact, check, drawn
from tests.metal.executor.launch import ORDERS
from tests.metal.fake_chip import pipeline

AXES = Axes(
    pipeline={
        "dtype": tuple(DTYPES),
        "size": (128, 64, 80, 96, 192, 256),
        "window": (None, 1, 40),
    },
    extra={
        "split": (True, False),
        "simdgroups": (1, 2, 8),
        "row_tiles": (1, 2),
        "halves": (2, 1),  # half a head is a multiple of 16 elements
    },
    shape={
        "rows": range(2, 33),
        "heads": ((8, 2), (6, 1)),
        "context": (0, 31, 333),
        "order": ORDERS,
    },
)
WATCHED = Axes(
    pipeline={
        "dtype": ("bfloat16", "float32"),
        "size": (64, 80),
        "window": (None, 24),
        "split": (True, False),
    },
    extra={"simdgroups": (1, 8), "row_tiles": (1, 2), "halves": (1, 2)},
    shape={"rows": (2, 5, 16), "heads": ((4, 2), (6, 1)), "context": (0, 31, 100)},
)


def _visible(rows: int, keys: int, window: int | None) -> np.ndarray:
    position, key = np.arange(keys - rows, keys)[:, None], np.arange(keys)[None]
    return (key <= position) & (key > position - (window or keys))


@functools.lru_cache(maxsize=4)
def _posed(
    dtype: str, size: int, heads: tuple[int, int], rows: int, keys: int, window: int | None
) -> tuple[mx.array, mx.array, mx.array, tuple[Exact, Exact]]:
    """Return queries, keys, values and the expected result; cached, most cases differ in order."""
    q = queries(1, heads[0], rows, size, DTYPES[dtype])
    k, v = (cached(seed, heads[1], keys, size, DTYPES[dtype]) for seed in (2, 3))
    return q, k, v, attention(q, k, v, 1.5 * size**-0.5, _visible(rows, keys, window))


def _n_keys(case: Case) -> int:
    return int(case["rows"] + min(case["context"], case["window"] or case["context"]))


def _run(case: Case, device: Device) -> None:
    size, rows, dtype = case["size"], case["rows"], DTYPES[case["dtype"]]
    keys, window = rows + case["context"], case["window"]
    q, k, v, truth = _posed(case["dtype"], size, case["heads"], rows, keys, window)
    halves = case["halves"] if size % 32 == 0 else 1
    geometry = AttentionGeometry(
        case["simdgroups"] * halves,
        1 if size > 128 or halves == 2 else case["row_tiles"],
        key_block_of(size, dtype),
        splits=1 + _n_keys(case) // 40 if case["split"] else 1,
        halves=halves,
    )
    scale = 1.5 * size**-0.5
    out = verify_attention(q, k, v, scale, window=window, device=device, geometry=geometry)
    assert out.dtype == dtype
    check(out, *truth, slack=4)


@pytest.mark.over(AXES)
def test_equals_float64_attention(case: Case, device_in: Callable[[str], Device]) -> None:
    """One key too many or too few at the end or at the edge of the window changes the result."""
    _run(case, device_in(case["order"]))


@pytest.mark.over(WATCHED)
def test_traced_run_has_no_reports(case: Case, traced_device: Device) -> None:
    """Reads past the last key, and data races on staged keys, change the result on a GPU."""
    _run(case, traced_device)


@pytest.mark.parametrize("context", [1, 1023, 4984])
def test_a_long_context_is_right_in_the_shipped_geometry(context: int, device: Device) -> None:
    """Long contexts use splits and the merge in the default geometry."""
    q = queries(1, 8, 16, 128, mx.bfloat16)
    k, v = (cached(seed, 2, context + 16, 128, mx.bfloat16) for seed in (2, 3))
    out = verify_attention(q, k, v, 0.1, device=device)
    visible = _visible(16, context + 16, None)
    check(out, *attention(q, k, v, 0.1, visible), slack=4)


SPLIT = AttentionGeometry(2, 1, 16, splits=2)


def test_reads_views_of_any_strides(device: Device) -> None:
    """Caches store the rows of a head, or the heads of a row, adjacent in memory."""
    q, scale = queries(1, 4, 5, 64, mx.float32), 64**-0.5
    interleaved = [queries(seed, 2, 90, 64, mx.float32) for seed in (2, 3)]
    upright = [drawn(seed, (1, 2, 64, 90), mx.float32, False).swapaxes(2, 3) for seed in (2, 3)]
    for k, v in (interleaved, upright):
        out = verify_attention(q, k, v, scale, device=device, geometry=SPLIT)
        check(out, *attention(q, k, v, scale, _visible(5, 90, None)), slack=4)


def test_one_key_may_score_far_above_the_rest(device: Device) -> None:
    """Weights of another split may be more than 2^127 times larger and must not overflow."""
    q, scale = queries(1, 4, 5, 64, mx.float32), 64**-0.5
    k, v = (queries(seed, 2, 90, 64, mx.float32) for seed in (2, 3))
    k = k * mx.where(mx.arange(90) == 70, 300.0, 0.1)[:, None]
    out = verify_attention(q, k, v, scale, device=device, geometry=SPLIT)
    check(out, *attention(q, k, v, scale, _visible(5, 90, None)), slack=400)


def test_all_scores_far_below_zero(device: Device) -> None:
    """A hidden key, or an initial maximum, above all visible scores takes the whole weight."""
    q, scale = mx.abs(queries(1, 4, 5, 64, mx.float32)), 64**-0.5
    k, v = (queries(seed, 2, 90, 64, mx.float32) for seed in (2, 3))
    k = -30 * mx.abs(k)
    out = verify_attention(q, k, v, scale, device=device, geometry=SPLIT)
    check(out, *attention(q, k, v, scale, _visible(5, 90, None)), slack=400)


def test_keys_and_values_have_different_strides(device: Device) -> None:
    """Quantized and shared caches may store keys and values in different layouts."""
    q, scale = queries(1, 4, 5, 64, mx.float32), 64**-0.5
    k, v = queries(2, 2, 90, 64, mx.float32), cached(3, 2, 90, 64, mx.float32)
    out = verify_attention(q, k, v, scale, device=device, geometry=SPLIT)
    check(out, *attention(q, k, v, scale, _visible(5, 90, None)), slack=4)


@pytest.mark.parametrize(("heads", "size"), [((8, 2), 128), ((6, 1), 256), ((16, 2), 128)])
def test_reads_keys_and_values_once(
    heads: tuple[int, int], size: int, traced_device: Device
) -> None:
    """Stock attention reads each key once per row or per query head."""
    if not isinstance(traced_device, ExecutorDevice):
        pytest.skip("counts exist in the executor only")
    q = queries(1, heads[0], 16, size, mx.bfloat16)
    k, v = (cached(seed, heads[1], 100, size, mx.bfloat16) for seed in (2, 3))
    verify_attention(q, k, v, 0.1, device=traced_device)
    run = traced_device.runs[0]
    for name in "kv":
        counts = run.counts.buffers[name]
        assert counts.read_issued == counts.unique_read == heads[1] * 100 * size * 2


def test_a_window_reads_only_visible_keys(traced_device: Device) -> None:
    """A sliding-window layer must read its window only, at any context length."""
    if not isinstance(traced_device, ExecutorDevice):
        pytest.skip("counts exist in the executor only")
    q = queries(1, 2, 4, 64, mx.bfloat16)
    k, v = (cached(seed, 1, 500, 64, mx.bfloat16) for seed in (2, 3))
    verify_attention(q, k, v, 0.1, window=20, device=traced_device)
    run = traced_device.runs[0]
    assert run.counts.buffers["k"].unique_read == (20 + 4 - 1) * 64 * 2


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    q = queries(1, 4, 5, 64, mx.float32)
    k, v = (cached(seed, 2, 50, 64, mx.float32) for seed in (2, 3))
    for window in (None, 9):
        out = verify_attention(q, k, v, 0.1, window=window, device=None)
        assert mx.array_equal(out, verify_attention_reference(q, k, v, 0.1, window))
        check(out, *attention(q, k, v, 0.1, _visible(5, 50, window)), slack=4)


Inputs = tuple[mx.array, ...]
BAD: dict[str, tuple[Callable[[mx.array, mx.array, mx.array], Inputs], str]] = {
    "one row": (lambda q, k, v: (q[:, :, :1], k, v), "1 rows"),
    "batch": (lambda q, k, v: (mx.concatenate([q, q]), k, v), "batch size 2"),
    "rank": (lambda q, k, v: (q[0], k, v), r"\[1, H, M, D\]"),
    "types": (lambda q, k, v: (q, k.astype(mx.float16), v), "one type"),
    "int32": (lambda q, k, v: tuple(a.astype(mx.int32) for a in (q, k, v)), "int32"),
    "head size": (lambda q, k, v: tuple(a[..., :40] for a in (q, k, v)), "head size is 40"),
    "groups": (lambda q, k, v: (q[:, :3], k, v), "3 query heads for 2"),
    "values": (lambda q, k, v: (q, k, v[:, :, :40]), "v is"),
    "few keys": (lambda q, k, v: (q, k[:, :, :3], v[:, :, :3]), "3 keys for 5 rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_unsupported_inputs(name: str) -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    spoil, reason = BAD[name]
    q, k, v = (queries(seed, heads, 50, 64, mx.float32) for seed, heads in enumerate((4, 2, 2)))
    q = q[:, :, :5]
    spoiled_q, spoiled_k, spoiled_v = spoil(q, k, v)
    with pytest.raises(BadRequest, match=reason):
        verify_attention(spoiled_q, spoiled_k, spoiled_v, 0.1, device=None)
    with pytest.raises(BadRequest, match="window is 0"):
        verify_attention(q, k, v, 0.1, window=0, device=None)
    assert verify_attention_refusal(q, k, v) is None


def test_geometries_hold_all_rows_of_a_group_where_registers_allow() -> None:
    """Rows in two threadgroups read each key twice."""
    for size, rows in ((128, 64), (128, 128), (256, 96), (256, 128), (64, 16)):
        first = attention_geometries(size, mx.bfloat16, rows, 4, 1024)[:2]
        assert min(geometry.row_blocks(rows) for geometry in first) == 1


def test_halves_fit_in_threadgroup_memory() -> None:
    """The scores that two halves exchange are stored beside the staged keys and values."""
    for size, dtype in ((192, mx.bfloat16), (256, mx.float16), (256, mx.float32)):
        for rows in range(8, 513, 8):
            for geometry in attention_geometries(size, dtype, rows, 2, 4096):
                staged = 2 * geometry.key_block * (size + 8) * dtype.size
                scores = (
                    32 * geometry.simdgroups * geometry.key_block if geometry.halves == 2 else 4
                )
                assert staged + scores <= 32 * 1024
                assert 32 * geometry.simdgroups <= 1024


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(32, 8, 128), (32, 4, 128), (64, 8, 128), (40, 8, 128), (24, 4, 256), (16, 2, 256)],
    ids=["Qwen3-8B", "Qwen3-Coder-30B", "Qwen3-32B", "Qwen3-14B", "Qwen3.5-27B", "Qwen3.5-35B-A3B"],
)
@pytest.mark.parametrize("block_size", [2, 8, 16])
def test_few_kv_heads_give_64_threadgroups(
    heads: int, kv_heads: int, size: int, block_size: int
) -> None:
    """With 8 threadgroups at 1,000 keys, 32 of the 40 cores of an M4 Max had no work."""
    rows = block_size * heads // kv_heads
    first = attention_geometries(size, mx.bfloat16, rows, kv_heads, 1024)[0]
    assert kv_heads * first.row_blocks(rows) * first.splits >= 64


def test_every_split_has_two_key_blocks() -> None:
    """Shorter splits spend more on their unfinished rows than on their keys."""
    for size, keys in ((128, 100), (256, 1024), (64, 20)):
        for geometry in attention_geometries(size, mx.bfloat16, 128, 1, keys):
            assert geometry.splits == 1 or geometry.splits * 2 * geometry.key_block <= keys


class FirstOutput:
    """A device that keeps the first output of every launch."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.outputs: list[mx.array] = []

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return the outputs of the wrapped device."""
        outputs = self.device.run(launch)
        self.outputs.append(outputs[0])
        return outputs


def test_every_split_has_keys(device: Device) -> None:
    """33 key blocks in 16 splits of 3 left 5 splits, and their threadgroups, without keys."""
    q = queries(1, 4, 4, 64, mx.bfloat16)
    k, v = (cached(seed, 2, 33 * 32, 64, mx.bfloat16) for seed in (2, 3))
    recorder = FirstOutput(device)
    geometry = AttentionGeometry(1, 1, 32, splits=16)
    verify_attention(q, k, v, 0.1, device=recorder, geometry=geometry)
    weights = recorder.outputs[0][..., -1]  # [splits, heads, rows]
    assert weights.shape[0] == 16
    assert mx.all(weights[:, :, -1] > 0)


def test_one_geometry_launches_one_pipeline_at_every_context_length() -> None:
    """The number of splits grew with the context, so unchecked pipelines ran within an answer."""
    geometry = attention_geometries(128, mx.bfloat16, 64, 8, 1024)[0]
    q = mx.zeros((1, 32, 16, 128), mx.bfloat16)
    launched = set()
    for keys in (1024, 2048, 4095, 40_000):
        recorder = LaunchRecorder()
        k, v = (mx.zeros((1, 8, keys, 128), mx.bfloat16) for _ in range(2))
        verify_attention(q, k, v, 1.0, device=recorder, geometry=geometry)
        launched.add(tuple(pipeline(launch) for launch in recorder.launches))
    assert len(launched) == 1
