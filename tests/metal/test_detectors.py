"""Each detector of the executor reports its bug in a small kernel, and not the correct kernel."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import pytest

from tests.metal.executor import CompileError, Executor, Objects, Run
from tests.metal.executor.facts import KINDS

N = 64  # threads of one threadgroup: two simdgroups

SHARE = """
threadgroup float shared[64];
uint i = thread_position_in_threadgroup.x;
shared[i] = x[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
y[i] = shared[63 - i];
"""
SIMD_SHARE = """
threadgroup float shared[64];
uint i = thread_position_in_threadgroup.x;
uint base = 32 * simdgroup_index_in_threadgroup;
shared[i] = x[i];
simdgroup_barrier(mem_flags::mem_threadgroup);
y[i] = shared[base + 31 - thread_index_in_simdgroup];
"""
REUSE = """
threadgroup float shared[64];
uint i = thread_position_in_threadgroup.x;
float sum = 0;
for (int round = 0; round < 2; ++round) {
  shared[i] = x[i] + round;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum += shared[63 - i];
  threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next iteration overwrites
}
y[i] = sum;
"""
COPY = """
uint i = thread_position_in_grid.x;
y[i] = x[i];
"""
DEVICE_SHARE = """
uint i = thread_position_in_threadgroup.x;
y[i] = x[i];
threadgroup_barrier(mem_flags::mem_device);
float other = y[63 - i];
threadgroup_barrier(mem_flags::mem_device);
y[i] = other;
"""
REDUCE = """
uint i = thread_position_in_threadgroup.x;
float sum = simd_sum(x[i]);
y[i] = sum;
"""
LOCAL = """
uint i = thread_position_in_threadgroup.x;
float mine[4];
for (int k = 0; k < 4; ++k) mine[k] = x[(i + k) % 64];
y[i] = mine[i % 4];
"""
SHIFT = """
uint i = thread_position_in_threadgroup.x;
y[i] = float((1u << (i % 32)) & 255u) + x[i];
"""
OVERFLOW = """
uint i = thread_position_in_threadgroup.x;
int big = int(i) * 1000;
y[i] = float(big * 1000) + x[i];
"""
DIVIDE = """
uint i = thread_position_in_threadgroup.x;
int divisor = int(i) + 1;
y[i] = float(1000 / divisor) + x[i];
"""
LIMIT = """
threadgroup float shared[8192];
uint i = thread_position_in_threadgroup.x;
shared[i] = x[i];
y[i] = shared[i];
"""
ATOMIC = """
threadgroup atomic<int> total[1];
uint i = thread_position_in_threadgroup.x;
if (i == 0) atomic_store_explicit(&total[0], 0, memory_order_relaxed);
threadgroup_barrier(mem_flags::mem_threadgroup);
atomic_fetch_add_explicit(&total[0], 1, memory_order_relaxed);
threadgroup_barrier(mem_flags::mem_threadgroup);
y[i] = x[i] + float(atomic_load_explicit(&total[0], memory_order_relaxed));
"""
SCALAR = """
uint i = thread_position_in_threadgroup.x;
y[i] = x[i];
if (i == 0) y[0] = x[0] + 1.0f;
"""


@dataclass(frozen=True)
class Planted:
    """A bug: the correct kernel and the text to replace in it, or another grid."""

    kind: str
    clean: str
    old: str = ""
    new: str = ""
    grid: int = N
    threads: int = N


BUGS = {
    "barrier_missing": Planted(
        "threadgroup race", SHARE, "threadgroup_barrier(mem_flags::mem_threadgroup);", ""
    ),
    "barrier_without_memory_flag": Planted(
        "threadgroup race", SHARE, "mem_flags::mem_threadgroup", "mem_flags::mem_none"
    ),
    "barrier_for_device_memory_only": Planted(
        "threadgroup race", SHARE, "mem_flags::mem_threadgroup", "mem_flags::mem_device"
    ),
    "simdgroup_barrier_across_simdgroups": Planted(
        "threadgroup race", SHARE, "threadgroup_barrier", "simdgroup_barrier"
    ),
    "simdgroup_barrier_missing": Planted(
        "threadgroup race", SIMD_SHARE, "simdgroup_barrier(mem_flags::mem_threadgroup);", ""
    ),
    "second_barrier_missing": Planted(
        "threadgroup race",
        REUSE,
        "threadgroup_barrier(mem_flags::mem_threadgroup);  //",
        "//",
    ),
    "device_barrier_missing": Planted(
        "device race",
        DEVICE_SHARE,
        "threadgroup_barrier(mem_flags::mem_device);\nfloat",
        "float",
    ),
    "two_threads_write_one_output": Planted("device race", COPY, "y[i] =", "y[i / 2] ="),
    "two_threadgroups_write_one_output": Planted(
        "device race", COPY, "y[i] =", "y[i % 32] =", threads=32
    ),
    "same_value_from_two_threads": Planted(
        "same value written by several threads", COPY, "y[i] = x[i];", "y[i / 2] = 1.0f;"
    ),
    "plain_access_beside_atomics": Planted(
        "threadgroup race",
        ATOMIC,
        ATOMIC[ATOMIC.rindex("threadgroup_barrier") :],
        "y[i] = x[i] + float(*(threadgroup int*)total);",
    ),
    "read_past_the_end": Planted("device out of bounds", COPY, "= x[i]", "= x[i + 1]"),
    "read_before_the_start": Planted("device out of bounds", COPY, "= x[i]", "= x[int(i) - 1]"),
    "read_far_away": Planted("device out of bounds", COPY, "= x[i]", "= x[i + 100000]"),
    "write_past_the_end": Planted("device out of bounds", COPY, "y[i] =", "y[i + 1] ="),
    "one_threadgroup_too_many": Planted("device out of bounds", COPY, grid=N + 1),
    "threadgroup_index_past_the_end": Planted(
        "threadgroup out of bounds", SHARE, "shared[63 - i]", "shared[64 - i]"
    ),
    "local_index_past_the_end": Planted(
        "local array out of bounds", LOCAL, "mine[i % 4]", "mine[i % 5]"
    ),
    "pointer_to_nowhere": Planted(
        "unknown memory", COPY, "= x[i]", "= *((const device float*)(ulong(i) + 64))"
    ),
    "threadgroup_read_before_write": Planted(
        "uninitialised threadgroup read", SHARE, "shared[i] = x[i]", "if (i < 60) shared[i] = x[i]"
    ),
    "atomic_update_before_a_store": Planted(
        "uninitialised threadgroup read",
        ATOMIC,
        "if (i == 0) atomic_store",
        "if (i > 64) atomic_store",
    ),
    "vector_load_between_its_places": Planted(
        "misaligned access", COPY, "= x[i]", "= ((const device float2*)(x + i % 2))->y"
    ),
    "output_read_before_write": Planted(
        "uninitialised device read", COPY, "y[i] = x[i];", "y[i] = x[i] + 0.0f * y[i];"
    ),
    "one_threadgroup_too_few": Planted("output not written", COPY, grid=N - 1),
    "barrier_in_a_branch": Planted(
        "divergent barrier",
        SHARE,
        "threadgroup_barrier",
        "if (simdgroup_index_in_threadgroup == 0) threadgroup_barrier",
    ),
    "barrier_after_a_return": Planted(
        "divergent barrier", SHARE, "shared[i] = x[i];", "shared[i] = x[i]; if (i == 5) return;"
    ),
    "two_different_barriers": Planted(
        "divergent barrier",
        SHARE,
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "else threadgroup_barrier(mem_flags::mem_threadgroup);",
    ),
    "simd_sum_in_a_branch": Planted(
        "partial simdgroup", REDUCE, "simd_sum(x[i])", "i % 2 ? simd_sum(x[i]) : 0.0f"
    ),
    "too_much_threadgroup_memory": Planted(
        "threadgroup memory over 32 KB", LIMIT, "shared[8192]", "shared[8193]"
    ),
    "shift_by_the_width": Planted("shift too far", SHIFT, "i % 32", "i"),
    "signed_overflow": Planted("integer overflow", OVERFLOW, "* 1000;", "* 100000;"),
    "division_by_zero": Planted("integer overflow", DIVIDE, "int(i) + 1", "int(i)"),
}


def _run(objects: Objects, source: str, grid: int, threads: int, *, traced: bool) -> Run:
    kernel = mx.fast.metal_kernel(
        name="planted", input_names=["x"], output_names=["y"], source=source
    )
    executor = Executor(traced, objects=objects)
    return executor.run(
        kernel,
        [mx.arange(N).astype(mx.float32)],
        grid=(grid, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(N,)],
        output_dtypes=[mx.float32],
    )


@pytest.mark.parametrize("name", BUGS)
def test_detector_reports_the_bug(objects: Objects, name: str) -> None:
    """A detector that never reports would pass every kernel."""
    bug = BUGS[name]
    source = bug.clean.replace(bug.old, bug.new) if bug.old else bug.clean
    assert bug.old in bug.clean
    run = _run(objects, source, bug.grid, bug.threads, traced=True)
    assert bug.kind in {report.kind for report in run.reports}, [str(r) for r in run.reports]


@pytest.mark.parametrize(
    ("source", "threads"), sorted({(bug.clean, bug.threads) for bug in BUGS.values()})
)
def test_detectors_are_silent_on_clean_kernels(objects: Objects, source: str, threads: int) -> None:
    """Correct kernels must have no reports."""
    assert not _run(objects, source, N, threads, traced=True).reports


def test_every_kind_of_report_has_a_planted_bug() -> None:
    """Every detector needs a kernel that it reports."""
    proved = {bug.kind for bug in BUGS.values()} | {
        "input written",
        "fault",
        "guard overwritten",
        "no end",
    }
    assert proved == set(KINDS)


def test_report_names_buffer_and_line(objects: Objects) -> None:
    """A report must name the buffer and the source line."""
    run = _run(objects, COPY.replace("= x[i]", "= x[i + 1]"), N, N, traced=True)
    (report,) = run.reports
    assert report.buffer == "x"
    assert "x[i + 1]" in run.source.text.splitlines()[report.line - 1]


def test_write_to_an_input_is_reported(objects: Objects) -> None:
    """A write to an input corrupts an array that other operations share."""
    source = COPY + "((device float*)x)[i] = 0.0f;"
    kinds = {r.kind for r in _run(objects, source, N, N, traced=True).reports}
    assert "input written" in kinds


def test_plain_build_reports_overwritten_guards_and_faults(objects: Objects) -> None:
    """Runs without tracing must report writes out of bounds and survive them."""
    near = _run(objects, COPY.replace("y[i] =", "y[i + 1] ="), N, N, traced=False)
    assert {r.kind for r in near.reports} == {"guard overwritten"}
    far = _run(objects, COPY.replace("y[i] =", "y[i + 100000] ="), N, N, traced=False)
    assert [(r.kind, r.buffer) for r in far.reports] == [("fault", "y")]


def test_endless_loop_is_stopped(objects: Objects) -> None:
    """An endless loop must fail one test instead of blocking the test run."""
    source = (
        "uint k = 0; while (k != 3u) k += 2u * uint(x[1]); y[thread_position_in_grid.x] = float(k);"
    )
    kernel = mx.fast.metal_kernel(
        name="endless", input_names=["x"], output_names=["y"], source=source
    )
    run = Executor(objects=objects, limit_s=1).run(
        kernel, [mx.arange(N).astype(mx.float32)], output_shapes=[(1,)], output_dtypes=[mx.float32]
    )
    assert {r.kind for r in run.reports} == {"no end"}


def test_unwritten_output_of_a_plain_build_is_not_a_number(objects: Objects) -> None:
    """Zeros could be a plausible result."""
    run = _run(objects, COPY, N - 1, N, traced=False)
    assert mx.isnan(run.outputs[0][-1]).item()
    assert not mx.isnan(run.outputs[0][:-1]).any().item()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("y[i] = undeclared;", "undeclared"),
        ("bfloat16_t b = 1.5f; y[i] = float(b);", "bfloat"),
        ("x[i] = 1.0f; y[i] = 0.0f;", "read-only"),
        ("float grid_size = 1.0f; y[i] = grid_size;", "grid_size"),
        ("simdgroup_matrix<half, 8, 8> m; simdgroup_load(m, x); y[i] = 0;", "element types"),
        ("y[i] = max(int(i), x[i]);", "ambiguous"),
    ],
)
def test_source_that_metal_refuses_does_not_compile(
    objects: Objects, source: str, message: str
) -> None:
    """Source that Apple's compiler refuses must fail in the executor."""
    with pytest.raises(CompileError, match=message):
        _run(objects, "uint i = thread_position_in_grid.x;\n" + source, N, N, traced=False)


def test_too_many_threads_are_refused() -> None:
    """Metal refuses a launch with 1025 threads."""
    kernel = mx.fast.metal_kernel(name="k", input_names=["x"], output_names=["y"], source=COPY)
    with pytest.raises(ValueError, match="1024"):
        Executor().run(kernel, [mx.zeros((64,))], grid=(2048, 1, 1), threadgroup=(1025, 1, 1))
