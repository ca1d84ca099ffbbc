"""Test inputs, and the error that a kernel may have.

Expected values are computed in float64. A kernel accumulates in float32, with an error relative to
the sum of magnitudes, and then rounds once to its result type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Exact = npt.NDArray[np.float64]

DTYPES: Final = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
ROUNDING: Final = {mx.float32: 0.0, mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}
ACCUMULATION: Final = 1e-6


def drawn(seed: int, shape: Sequence[int], dtype: mx.Dtype, outliers: bool = True) -> mx.array:
    """Return normal values; with `outliers` some columns are 50 times as large."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if outliers:
        values[..., rng.integers(0, shape[-1], max(1, shape[-1] // 50))] *= 50
    return mx.array(values.astype(np.float32)).astype(dtype)


def exact(array: mx.array) -> Exact:
    """Return the values of `array` in float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def check(result: mx.array, truth: Exact, magnitude: Exact | float, slack: float = 1.0) -> None:
    """Assert that `result` is `truth` up to rounding; `magnitude` is a sum of magnitudes."""
    assert result.shape == truth.shape, f"{result.shape} instead of {truth.shape}"
    error: Any = np.abs(exact(result) - truth)
    allowed = ROUNDING[result.dtype] * np.abs(truth) + slack * ACCUMULATION * magnitude
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert (error <= allowed).all(), (
        f"at {tuple(map(int, worst))}: {exact(result)[worst]} instead of {truth[worst]}, "
        f"allowed {allowed[worst]:.3g}"
    )
