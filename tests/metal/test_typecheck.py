"""Kernels are well typed with real address spaces, which the executor erases."""

from __future__ import annotations

import mlx.core as mx
import pytest

from tests.metal.executor import typecheck
from tests.metal.executor.source import Source, generate
from tests.metal.kernel_cases import kernel_tests, sources

CASES = 12  # instantiations checked per kernel

pytestmark = pytest.mark.skipif(typecheck.missing() is not None, reason=str(typecheck.missing()))


def _source(body: str, header: str = "", size: int = 64) -> Source:
    kernel = mx.fast.metal_kernel(
        name="typed", input_names=["x"], output_names=["y"], source=body, header=header
    )
    return generate(
        kernel,
        [mx.zeros((size,))],
        template=[("T", mx.bfloat16)],
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[(64,)],
        output_dtypes=[mx.float32],
    )


SCALE = "inline float twice(const device float* p, uint i) { return 2.0f * p[i]; }\n"
CLEAN = """
threadgroup float shared[64];
uint i = thread_position_in_grid.x;
shared[i] = x[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
threadgroup float* other = shared + 1;
y[i] = twice(x, i) + shared[63 - i] + other[0] + float(T(1.0f));
"""


def test_clean_kernel_passes() -> None:
    """A correct kernel must pass."""
    assert typecheck.typecheck(_source(CLEAN, SCALE)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("twice(x, i)", "twice(shared, i)"),
        ("threadgroup float* other = shared", "device float* other = shared"),
        ("threadgroup float* other", "float* other"),
        ("y[i] =", "x[i] ="),
        ("shared[63 - i]", "undeclared"),
    ],
)
def test_address_space_mistakes_are_found(old: str, new: str) -> None:
    """Apple's compiler refuses these; the shim of the executor erases address spaces."""
    assert old in CLEAN
    errors = typecheck.typecheck(_source(CLEAN.replace(old, new), SCALE))
    assert errors
    assert all(error.startswith("line ") for error in errors)


def test_small_inputs_are_constant() -> None:
    """MLX passes arrays of fewer than 8 elements as constant, which device helpers refuse."""
    assert (
        typecheck.typecheck(_source("uint i = thread_position_in_grid.x; y[i] = x[i];", size=4))
        == []
    )
    assert typecheck.typecheck(_source(CLEAN, SCALE, size=4))


@pytest.mark.parametrize("name", kernel_tests())
def test_every_kernel_is_well_typed(name: str) -> None:
    """A kernel that Apple's compiler refuses stops the user's first answer."""
    found = sources(kernel_tests()[name], CASES)
    assert found
    for source in found:
        assert typecheck.typecheck(source) == [], source.name
