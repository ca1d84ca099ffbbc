"""candidate_path against path selection in float64, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.candidate_path import (
    CandidateRows,
    Codebooks,
    candidate_path,
    candidate_path_refusal,
)
from tests.metal.covering import Axes, Case
from tests.metal.exactness import DTYPES, check, drawn, exact
from tests.metal.executor.launch import ORDERS

VOCABULARY = 50
AXES = Axes(
    pipeline={"dtype": tuple(DTYPES), "books": tuple(DTYPES), "count": (16, 1, 5, 32)},
    shape={
        "rows": (1, 2, 7, 15, 31),
        "rank": (256, 32, 40),
        "temperature": (0.0, 0.7),
        "order": ORDERS,
    },
)

Inputs = tuple[mx.array, CandidateRows, Codebooks, float, mx.array]


def _inputs(case: Case) -> Inputs:
    rng = np.random.default_rng(case["rows"])
    shape = (case["rows"], case["count"])
    candidates = np.array([rng.permutation(VOCABULARY)[: case["count"]] for _ in range(shape[0])])
    books = DTYPES[case["books"]]
    noise = rng.gumbel(size=shape) * (1 if case["temperature"] else 0)
    return (
        mx.array(7, mx.int32),
        CandidateRows(
            mx.array(candidates.astype(np.int32)),
            drawn(1, shape, mx.float32, outliers=False),
            drawn(2, (case["rows"], case["rank"]), DTYPES[case["dtype"]], outliers=False),
        ),
        Codebooks(
            drawn(3, (VOCABULARY, case["rank"]), books, outliers=False) * 0.3,
            drawn(4, (VOCABULARY, case["rank"]), books, outliers=False) * 0.3,
        ),
        case["temperature"],
        mx.array(noise.astype(np.float32)),
    )


def _run(case: Case, device: Device | None) -> None:
    """Follow the selection of the kernel, so that a near tie cannot separate the two paths."""
    anchor, rows, books, temperature, noise = inputs = _inputs(case)
    path = candidate_path(*inputs, device=device)
    chosen, candidates = np.array(path.tokens), np.array(rows.candidates)
    before, after = exact(books.before), exact(books.after)
    previous = int(np.array(anchor))
    for row in range(case["rows"]):
        query = before[previous] * exact(rows.projected)[row]
        scores = exact(rows.unary)[row] + after[candidates[row]] @ query
        scores /= temperature or 1.0
        magnitude = (np.abs(after[candidates[row]]) @ np.abs(query)).max() + np.abs(scores).max()
        keys = scores + exact(noise)[row]
        assert chosen[row] in candidates[row]
        key = keys[candidates[row] == chosen[row]].max()
        assert key >= keys.max() - 2e-6 * magnitude
        top = scores.max()
        log_probs = scores - top - np.log(np.exp(scores - top).sum())
        check(path.log_probs[row], log_probs, 4 * magnitude)
        previous = int(chosen[row])


@pytest.mark.over(AXES)
def test_equals_the_path_in_float64(case: Case, device_in: Callable[[str], Device]) -> None:
    """A wrong predecessor changes every later row and lowers the acceptance rate."""
    _run(case, device_in(case["order"]))


@pytest.mark.parametrize("count", [5, 16])
def test_traced_run_has_no_reports(count: int, traced_device: Device) -> None:
    """Each row reads the token that the row before selected, across a barrier."""
    case = {"dtype": "bfloat16", "books": "bfloat16", "rows": 7, "rank": 40, "temperature": 0.7}
    _run({**case, "count": count}, traced_device)


def test_without_a_device_the_reference_is_used() -> None:
    """Machines without Metal use the reference implementation."""
    case = {"dtype": "float32", "books": "float32", "rows": 7, "rank": 40, "temperature": 0.7}
    _run({**case, "count": 16}, None)


def test_equal_scores_go_to_the_earlier_candidate(ordered_device: Device) -> None:
    """A tie must not depend on the order in which lanes run."""
    anchor, rows, books, _, noise = _inputs(
        {
            "dtype": "float32",
            "books": "float32",
            "rows": 3,
            "rank": 32,
            "temperature": 0.0,
            "count": 16,
        }
    )
    rows = replace(rows, unary=mx.zeros_like(rows.unary), projected=mx.zeros_like(rows.projected))
    path = candidate_path(anchor, rows, books, 0.0, noise, device=ordered_device)
    assert mx.array_equal(path.tokens, rows.candidates[:, 0])


def test_a_row_of_nan_selects_its_first_candidate(device: Device) -> None:
    """The index of no best score is past the row, and past the array in the last row."""
    case = {"dtype": "float32", "books": "float32", "rows": 3, "rank": 32, "temperature": 0.0}
    anchor, rows, books, _, noise = _inputs({**case, "count": 16})
    rows = replace(rows, unary=mx.full(rows.unary.shape, mx.nan))
    path = candidate_path(anchor, rows, books, 0.0, noise, device=device)
    assert mx.array_equal(path.tokens, rows.candidates[:, 0])


BAD: dict[str, tuple[Callable[[Inputs], Inputs], str]] = {
    "anchor": (lambda i: (mx.array([1, 2]), *i[1:]), "one int32"),
    "candidates": (
        lambda i: (i[0], replace(i[1], candidates=i[1].candidates.astype(mx.uint32)), *i[2:]),
        "int32 is needed",
    ),
    "projected": (
        lambda i: (i[0], replace(i[1], projected=i[1].projected[:, :8]), *i[2:]),
        "projected is",
    ),
    "unary": (lambda i: (i[0], replace(i[1], unary=i[1].unary[:1]), *i[2:]), "unary is"),
    "codebooks": (
        lambda i: (*i[:2], replace(i[2], after=i[2].after.astype(mx.float16)), *i[3:]),
        "one type",
    ),
    "noise": (lambda i: (*i[:4], i[4].astype(mx.float16)), "noise is"),
    "temperature": (lambda i: (*i[:3], -1.0, i[4]), "temperature is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_unsupported_inputs(name: str) -> None:
    """Unsupported inputs must raise with the reason instead of giving wrong results."""
    spoil, reason = BAD[name]
    case = {"dtype": "float32", "books": "float32", "rows": 7, "rank": 40, "temperature": 0.7}
    good = _inputs({**case, "count": 16})
    with pytest.raises(BadRequest, match=reason):
        candidate_path(*spoil(good), device=None)
    assert candidate_path_refusal(*good) is None
