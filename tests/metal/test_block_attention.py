"""block_attention against float64, over types, head sizes, groups, contexts and masks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.attention_geometry import AttentionGeometry, key_block_of
from dflash_mlx.metal.block_attention import (
    BlockKeys,
    BlockMask,
    block_attention,
    block_attention_reference,
    block_attention_refusal,
)
from dflash_mlx.metal.build import Device
from tests.metal.attention_cases import attention, cached, queries
from tests.metal.covering import Axes, Case
from tests.metal.device import ExecutorDevice
from tests.metal.exactness import DTYPES, Exact, check
from tests.metal.executor.launch import ORDERS

AXES = Axes(
    pipeline={
        "dtype": tuple(DTYPES),
        "size": (128, 64, 80, 96, 192, 256),
        "window": (None, 40),
        "causal": (False, True),
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
        "context": (1, 32, 333),
        "order": ORDERS,
    },
)
WATCHED = Axes(
    pipeline={
        "dtype": ("bfloat16", "float32"),
        "size": (64, 80),
        "window": (None, 24),
        "causal": (False, True),
        "split": (True, False),
    },
    extra={"simdgroups": (1, 8), "row_tiles": (1, 2), "halves": (1, 2)},
    shape={"rows": (2, 5, 16), "heads": ((4, 2), (6, 1)), "context": (1, 32, 100)},
)


def _keys(groups: int, context: int, rows: int, size: int, dtype: mx.Dtype) -> BlockKeys:
    return BlockKeys(
        cached(2, groups, context, size, dtype),
        cached(3, groups, context, size, dtype),
        queries(4, groups, rows, size, dtype),
        queries(5, groups, rows, size, dtype),
    )


def _truth(q: mx.array, keys: BlockKeys, scale: float, mask: BlockMask) -> tuple[Exact, Exact]:
    """Return attention with the mask of DFlash computed key by key."""
    context, rows = keys.context_k.shape[2], q.shape[2]
    visible = np.zeros((rows, context + rows), bool)
    for row in range(rows):
        for key in range(context + rows):
            in_block = key >= context
            if in_block:
                visible[row, key] = not mask.causal or key - context <= row
            else:
                visible[row, key] = mask.window is None or context + row - key < mask.window
    k = mx.concatenate([keys.context_k, keys.block_k], axis=2)
    v = mx.concatenate([keys.context_v, keys.block_v], axis=2)
    return attention(q, k, v, scale, visible)


@functools.lru_cache(maxsize=4)
def _posed(
    dtype: str, size: int, heads: tuple[int, int], rows: int, context: int, mask: BlockMask
) -> tuple[mx.array, BlockKeys, tuple[Exact, Exact]]:
    """Return queries, keys and the expected result; cached, most cases differ in order."""
    q = queries(1, heads[0], rows, size, DTYPES[dtype])
    keys = _keys(heads[1], context, rows, size, DTYPES[dtype])
    return q, keys, _truth(q, keys, 1.5 * size**-0.5, mask)


def _n_keys(case: Case) -> int:
    return int(case["rows"] + min(case["context"], case["window"] or case["context"]))


def _run(case: Case, device: Device) -> None:
    size, dtype = case["size"], DTYPES[case["dtype"]]
    mask = BlockMask(case["window"], case["causal"])
    q, keys, truth = _posed(case["dtype"], size, case["heads"], case["rows"], case["context"], mask)
    halves = case["halves"] if size % 32 == 0 else 1
    geometry = AttentionGeometry(
        case["simdgroups"] * halves,
        1 if size > 128 or halves == 2 else case["row_tiles"],
        key_block_of(size, dtype),
        splits=1 + _n_keys(case) // 40 if case["split"] else 1,
        halves=halves,
    )
    out = block_attention(q, keys, 1.5 * size**-0.5, mask, device=device, geometry=geometry)
    assert out.dtype == dtype
    check(out, *truth, slack=4)


@pytest.mark.over(AXES)
def test_equals_float64_attention(case: Case, device_in: Callable[[str], Device]) -> None:
    """A draft with a wrong mask still drafts, but its acceptance rate is lower."""
    _run(case, device_in(case["order"]))


@pytest.mark.over(WATCHED)
def test_traced_run_has_no_reports(case: Case, traced_device: Device) -> None:
    """The border between context and block is where reads out of bounds may occur."""
    _run(case, traced_device)


@pytest.mark.parametrize("context", [3, 1000])
@pytest.mark.parametrize("mask", [BlockMask(), BlockMask(2048, causal=True)], ids=["full", "slide"])
def test_a_long_context_is_right_in_the_shipped_geometry(
    context: int, mask: BlockMask, device: Device
) -> None:
    """Long contexts use splits and the merge in the default geometry."""
    q, keys = queries(1, 8, 16, 128, mx.bfloat16), _keys(2, context, 16, 128, mx.bfloat16)
    out = block_attention(q, keys, 0.1, mask, device=device)
    check(out, *_truth(q, keys, 0.1, mask), slack=4)


def test_keys_and_values_have_different_strides(device: Device) -> None:
    """Quantized and shared caches may store keys and values in different layouts."""
    q = queries(1, 4, 5, 64, mx.float32)
    keys = BlockKeys(
        queries(2, 2, 40, 64, mx.float32),
        cached(3, 2, 40, 64, mx.float32),
        queries(4, 2, 5, 64, mx.float32),
        cached(5, 2, 5, 64, mx.float32),
    )
    out = block_attention(q, keys, 0.1, BlockMask(), device=device)
    check(out, *_truth(q, keys, 0.1, BlockMask()), slack=4)


def test_reads_both_sources_once(traced_device: Device) -> None:
    """Concatenating context and block would write and read the whole cache once more."""
    if not isinstance(traced_device, ExecutorDevice):
        pytest.skip("counts exist in the executor only")
    q, keys = queries(1, 8, 16, 128, mx.bfloat16), _keys(2, 100, 16, 128, mx.bfloat16)
    block_attention(q, keys, 0.1, BlockMask(), device=traced_device)
    run = traced_device.runs[0]
    for name, rows in (("context_k", 100), ("context_v", 100), ("block_k", 16), ("block_v", 16)):
        counts = run.counts.buffers[name]
        assert counts.read_issued == counts.unique_read == 2 * rows * 128 * 2


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    q, keys = queries(1, 4, 5, 64, mx.float32), _keys(2, 40, 5, 64, mx.float32)
    for mask in (BlockMask(), BlockMask(9), BlockMask(9, causal=True), BlockMask(causal=True)):
        out = block_attention(q, keys, 0.1, mask, device=None)
        assert mx.array_equal(out, block_attention_reference(q, keys, 0.1, mask))
        check(out, *_truth(q, keys, 0.1, mask), slack=4)


def _half(array: mx.array) -> mx.array:
    return array.astype(mx.float16)


Spoiled = Callable[[mx.array, BlockKeys], tuple[mx.array, BlockKeys, BlockMask]]
BAD: dict[str, tuple[Spoiled, str]] = {
    "one row": (
        lambda q, k: (
            q[:, :, :1],
            replace(k, block_k=k.block_k[:, :, :1], block_v=k.block_v[:, :, :1]),
            BlockMask(),
        ),
        "1 rows",
    ),
    "block rows": (lambda q, k: (q[:, :, :4], k, BlockMask()), "block_k has 5 rows and q 4"),
    "types": (lambda q, k: (q, replace(k, context_v=_half(k.context_v)), BlockMask()), "one type"),
    "no context": (
        lambda q, k: (
            q,
            replace(k, context_k=k.context_k[:, :, :0], context_v=k.context_v[:, :, :0]),
            BlockMask(),
        ),
        "0 elements",
    ),
    "head size": (lambda q, k: (q[..., :40], k, BlockMask()), "head size is 40"),
    "groups": (
        lambda q, k: (
            q,
            replace(k, block_k=k.block_k[:, :1], block_v=k.block_v[:, :1]),
            BlockMask(),
        ),
        "1 in the block",
    ),
    "window": (lambda q, k: (q, k, BlockMask(window=4)), "window is 4"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_unsupported_inputs(name: str) -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    spoil, reason = BAD[name]
    q, keys = queries(1, 4, 5, 64, mx.float32), _keys(2, 40, 5, 64, mx.float32)
    spoiled_q, spoiled_keys, mask = spoil(q, keys)
    with pytest.raises(BadRequest, match=reason):
        block_attention(spoiled_q, spoiled_keys, 0.1, mask, device=None)
    assert block_attention_refusal(q, keys, BlockMask()) is None
