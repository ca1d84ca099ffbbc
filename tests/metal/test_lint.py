"""The lint finds what only Apple's compiler refuses, and passes the shipped kernels."""

from __future__ import annotations

import pytest

from tests.metal.executor.lint import FORBIDDEN, lint
from tests.metal.kernel_cases import shipped_kernels

HEADER = """
constant float HALF = 0.5f;
template <typename T>
inline float twice(const device T* p, uint i) {
  return 2.0f * float(p[i]);
}
inline void set(thread float (&a)[4], threadgroup float* t) { a[0] = t[0]; }
"""
BODY = """
threadgroup float shared[64];
uint i = thread_position_in_grid.x;
y[i] = twice(x, i) * x_shape[0];
"""

BAD = {
    "double": "double d = 1.0;",
    "long long": "long long n = 1;",
    "new or delete": "delete p;",
    "goto": "goto end;",
    "lambda": "auto f = [&](int a) { return a; };",
    "std::": "int a = std::min(1, 2);",
    "exceptions": "throw 1;",
    "run-time types": "virtual int a;",
    "structured binding": "auto [a, b] = pair;",
    "standard header": "#include <cmath>",
    "inline assembly": 'asm("nop");',
    "GNU builtin": "int a = __builtin_popcount(1);",
    "thread pointer": "const thread float* p = values;",
    "variable arguments": "int f(int a, ...);",
}


def _rules(header: str, body: str) -> set[str]:
    return {finding.rule for finding in lint(header, body, ("x",))}


def test_clean_text_passes() -> None:
    """Correct source must pass."""
    assert _rules(HEADER, BODY) == set()


def test_every_forbidden_construct_has_an_example() -> None:
    """A rule without an example may never match."""
    assert set(BAD) == set(FORBIDDEN)


@pytest.mark.parametrize("rule", BAD)
def test_forbidden_constructs_are_found_in_code_only(rule: str) -> None:
    """g++ and clang accept these; in a comment they are harmless."""
    assert _rules(HEADER, BODY + BAD[rule]) == {rule}
    assert _rules(HEADER, BODY + "// " + BAD[rule]) == set()


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        ("inline float f(const float* p) { return p[0]; }", "address space missing"),
        ("inline float f(float& p) { return p; }", "address space missing"),
        ("inline float f(float (&p)[4]) { return p[0]; }", "address space missing"),
        ("inline float f() { float a; const float* p = &a; return *p; }", "address space missing"),
        ("inline int f(int n) { return n ? f(n - 1) : 0; }", "recursion"),
        ("inline void f() { threadgroup float s[4]; }", "threadgroup variable"),
        ("threadgroup float s[4];", "threadgroup variable"),
        ("int counter = 0;", "global variable"),
    ],
)
def test_mistakes_in_functions_are_found(header: str, rule: str) -> None:
    """Only Apple's compiler reports these, on the user's Mac."""
    assert _rules(HEADER + header, BODY) == {rule}


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (BODY + "// see x_strides", "accidental name"),
        (BODY + "uint my_grid_size = 1;", "accidental name"),
        (BODY + "int grid_size = 4;", "accidental name"),
        ("y[0] = x[0];", "no attribute"),
    ],
)
def test_names_that_mlx_would_misread_are_found(body: str, rule: str) -> None:
    """MLX searches the body for attribute names as plain text, including comments."""
    assert _rules(HEADER, body) == {rule}


@pytest.mark.parametrize("name", shipped_kernels())
def test_shipped_kernels_pass(name: str) -> None:
    """The shipped sources must pass the lint."""
    kernel = shipped_kernels()[name]
    assert [str(f) for f in lint(kernel.header, kernel.body, kernel.inputs)] == []
