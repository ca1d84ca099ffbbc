"""The Metal shim follows Metal's rules for types, simdgroups, matrices and launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.metal.executor import Executor, Objects
from tests.metal.executor.launch import ORDERS
from tests.metal.executor.lower import (
    fill_unset_locals,
    share_threadgroup_variables,
    without_comments,
)

LANES = 32


def _run(
    objects: Objects,
    source: str,
    inputs: dict[str, mx.array],
    outputs: dict[str, tuple[tuple[int, ...], mx.Dtype]],
    *,
    grid: tuple[int, int, int] = (LANES, 1, 1),
    threadgroup: tuple[int, int, int] = (LANES, 1, 1),
    template: Sequence[tuple[str, Any]] = (),
    init_value: float | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> list[mx.array]:
    kernel = mx.fast.metal_kernel(
        name="shim",
        input_names=list(inputs),
        output_names=list(outputs),
        source=source,
        **options,
    )
    run = (executor or Executor(objects=objects)).run(
        kernel,
        list(inputs.values()),
        template=template,
        grid=grid,
        threadgroup=threadgroup,
        output_shapes=[shape for shape, _ in outputs.values()],
        output_dtypes=[dtype for _, dtype in outputs.values()],
        init_value=init_value,
    )
    assert not run.reports, [str(r) for r in run.reports]
    return run.outputs


REDUCTIONS = ("simd_sum", "simd_product", "simd_max", "simd_min")
MOVES = {
    "simd_broadcast(v, 5)": lambda v: np.full(32, v[5]),
    "simd_shuffle(v, (lane * 7) % 32)": lambda v: v[np.arange(32) * 7 % 32],
    "simd_shuffle_xor(v, 9)": lambda v: v[np.arange(32) ^ 9],
    "simd_shuffle_down(v, 3)": lambda v: np.append(v[3:], v[-3:]),
    "simd_shuffle_up(v, 3)": lambda v: np.append(v[:3], v[:-3]),
    "simd_shuffle_rotate_down(v, 3)": lambda v: np.roll(v, -3),
    "simd_shuffle_rotate_up(v, 3)": lambda v: np.roll(v, 3),
    "simd_shuffle_and_fill_down(v, 7.0f, 4)": lambda v: np.append(v[4:], [7.0] * 4),
    "simd_shuffle_and_fill_up(v, 7.0f, 4)": lambda v: np.append([7.0] * 4, v[:-4]),
    "simd_broadcast_first(v)": lambda v: np.full(32, v[0]),
    "simd_prefix_inclusive_sum(v)": lambda v: np.cumsum(v),
    "simd_prefix_exclusive_sum(v)": lambda v: np.cumsum(v) - v,
    "quad_sum(v)": lambda v: np.repeat(v.reshape(8, 4).sum(1), 4),
    "quad_broadcast(v, 2)": lambda v: np.repeat(v.reshape(8, 4)[:, 2], 4),
    "float(simd_any(v > 2.0f))": lambda v: np.full(32, float((v > 2).any())),
    "float(simd_all(v > 2.0f))": lambda v: np.full(32, float((v > 2).all())),
    "float(popcount(uint(ulong(simd_ballot(v > 1.0f)))))": lambda v: np.full(32, (v > 1).sum()),
}


@pytest.mark.parametrize("order", ORDERS)
def test_simdgroup_functions_give_every_lane_its_value(objects: Objects, order: str) -> None:
    """Symmetric kernels do not show a shuffle that reads the wrong lane."""
    values = np.random.default_rng(1).uniform(0.5, 1.5, LANES).astype(np.float32)
    expected = [getattr(np, n)(values) for n in ("sum", "prod", "max", "min")]
    statements = [f"y[{i} * 32 + lane] = {name}(v);" for i, name in enumerate(REDUCTIONS)]
    statements += [f"y[{i} * 32 + lane] = {text};" for i, text in enumerate(MOVES, 4)]
    (y,) = _run(
        objects,
        "uint lane = thread_index_in_simdgroup; float v = x[lane];\n" + "\n".join(statements),
        {"x": mx.array(values)},
        {"y": ((4 + len(MOVES), LANES), mx.float32)},
        executor=Executor(order=order, seed=3, objects=objects),
    )
    rows = [np.full(LANES, e) for e in expected] + [f(values) for f in MOVES.values()]
    np.testing.assert_allclose(np.array(y), np.stack(rows), rtol=1e-6)


@pytest.mark.parametrize(("name", "dtype"), [("float", mx.float32), ("half", mx.float16)])
def test_matrices_load_multiply_and_store(objects: Objects, name: str, dtype: mx.Dtype) -> None:
    """A wrong lane layout cancels in load and store, but not in thread_elements."""
    a, b = mx.random.normal((2, 8, 16), key=mx.random.key(0)).astype(dtype)
    source = f"""
    uint lane = thread_index_in_simdgroup;
    simdgroup_matrix<{name}, 8, 8> a, b, bt;
    simdgroup_load(a, A, 16, ulong2(8, 0));
    simdgroup_load(b, B, 16);
    simdgroup_load(bt, B, 16, ulong2(0, 0), true);
    simdgroup_float8x8 c = simdgroup_float8x8(1.0f), d;
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_multiply(d, a, bt);
    simdgroup_store(c, C, 8);
    simdgroup_store(d, C, 8, ulong2(0, 8), true);
    elements[2 * lane] = float(a.thread_elements()[0]);
    elements[2 * lane + 1] = float(a.thread_elements()[1]);
    """
    outputs = {"C": ((16, 8), mx.float32), "elements": ((32, 2), mx.float32)}
    c, elements = _run(objects, source, {"A": a, "B": b}, outputs)
    left = np.array(a.astype(mx.float32))[:, 8:]
    right = np.array(b.astype(mx.float32))[:, :8]
    np.testing.assert_allclose(np.array(c)[:8], left @ right + np.eye(8), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.array(c)[8:], (left @ right.T).T, rtol=1e-5, atol=1e-6)
    lane = np.arange(32)
    row = ((lane // 4) & 4) + lane // 2 % 4
    column = ((lane // 4) & 2) * 2 + lane % 2 * 2
    np.testing.assert_array_equal(np.array(elements)[:, 0], left[row, column])
    np.testing.assert_array_equal(np.array(elements)[:, 1], left[row, column + 1])


def test_small_floats_round_as_mlx_rounds(objects: Objects) -> None:
    """Tolerances would hide double rounding and lost denormals."""
    bits = np.random.default_rng(2).integers(0, 2**32, 4096, dtype=np.uint32)
    special = [0, 1 << 31, 0x7F800000, 0x387FE000, 0x33000000, 0x477FF000, 0x3F808000, 0x3F818000]
    values = np.concatenate([bits, np.array(special, np.uint32)]).view(np.float32)
    x = mx.array(np.nan_to_num(values, nan=1.0))
    source = "uint i = thread_position_in_grid.x; h[i] = half(x[i]); b[i] = bfloat16_t(x[i]);"
    h, b = _run(
        objects,
        source,
        {"x": x},
        {"h": (x.shape, mx.float16), "b": (x.shape, mx.bfloat16)},
        grid=(x.size, 1, 1),
    )
    assert mx.array_equal(h, x.astype(mx.float16))
    assert mx.array_equal(b, x.astype(mx.bfloat16))


def test_half_arithmetic_rounds_every_operation(objects: Objects) -> None:
    """A half accumulator must lose precision as on a GPU."""
    source = "half s = half(0); for (int i = 0; i < 4096; ++i) s += half(1); y[0] = float(s);"
    (y,) = _run(
        objects,
        source + " y[0] += x[0];",
        {"x": mx.zeros((8,))},
        {"y": ((1,), mx.float32)},
        grid=(1, 1, 1),
    )
    assert y.item() == 2048.0


def test_vectors_and_bits(objects: Objects) -> None:
    """Unpacking code relies on component order, packed alignment and bit functions."""
    source = """
    float4 v = *((const device float4*)x);
    packed_float3 p = packed_float3(float3(v.x, v.y, v.z));
    y[0] = dot(v.xy, v.zw);
    y[1] = float3(p).z;
    y[2] = float(as_type<uint>(v.x) >> 23);
    y[3] = float(popcount(0xF0F0u) + clz(1u) + ctz(8u) + extract_bits(0xABCDu, 4, 8));
    y[4] = select(1.0f, 2.0f, v.x > 0.0f) + clamp(9.0f, 0.0f, 1.0f);
    y[5] = float(sizeof(float3)) + float(sizeof(packed_float3));
    y[6] = float(uchar4(as_type<uchar4>(0x04030201u)).z);
    y[7] = max(NAN, 3.0f) + fma(2.0f, 3.0f, 1.0f) + rsqrt(4.0f);
    """
    x = mx.array([1.0, 2.0, 3.0, 4.0] * 2)
    (y,) = _run(objects, source, {"x": x}, {"y": ((8,), mx.float32)}, grid=(1, 1, 1))
    assert y.tolist() == [11.0, 3.0, 127.0, 8 + 31 + 3 + 0xBC, 3.0, 28.0, 3.0, 10.5]


def test_thread_positions_and_partial_threadgroups(objects: Objects) -> None:
    """Threadgroups at the edge are smaller; grids of full ones do not show a wrong index."""
    source = """
    uint3 p = thread_position_in_grid;
    uint at = p.x + threads_per_grid.x * (p.y + threads_per_grid.y * p.z);
    device uint* o = y + at * 8;
    o[0] = thread_index_in_threadgroup; o[1] = threads_per_threadgroup.x;
    o[2] = threadgroup_position_in_grid.y; o[3] = thread_position_in_threadgroup.z;
    o[4] = simdgroups_per_threadgroup; o[5] = dispatch_threads_per_threadgroup.x;
    o[6] = threadgroups_per_grid.x; o[7] = simdgroup_index_in_threadgroup * 32
      + thread_index_in_simdgroup;
    """
    grid, group = (37, 3, 4), (16, 2, 4)
    (y,) = _run(
        objects,
        source + "\n(void)x;",
        {"x": mx.zeros((8,))},
        {"y": ((4, 3, 37, 8), mx.uint32)},
        grid=grid,
        threadgroup=group,
    )
    got = np.array(y)
    z, yy, xx = np.meshgrid(np.arange(4), np.arange(3), np.arange(37), indexing="ij")
    width = np.where(xx < 32, 16, 5)
    height = np.where(yy < 2, 2, 1)
    index = xx % 16 + width * (yy % 2 + height * z)
    np.testing.assert_array_equal(got[..., 0], index)
    np.testing.assert_array_equal(got[..., 1], width)
    np.testing.assert_array_equal(got[..., 2], yy // 2)
    np.testing.assert_array_equal(got[..., 3], z)
    np.testing.assert_array_equal(got[..., 4], (width * height * 4 + 31) // 32)
    np.testing.assert_array_equal(got[..., 5], np.full_like(xx, 16))
    np.testing.assert_array_equal(got[..., 6], np.full_like(xx, 3))
    np.testing.assert_array_equal(got[..., 7], index)


def test_threadgroup_larger_than_the_grid_is_clipped(objects: Objects) -> None:
    """MLX clips a threadgroup to the grid; kernels see the clipped size."""
    source = "y[thread_position_in_grid.x] = threads_per_threadgroup.x + uint(x[0]);"
    (y,) = _run(
        objects,
        source,
        {"x": mx.zeros((8,))},
        {"y": ((5,), mx.uint32)},
        grid=(5, 1, 1),
        threadgroup=(256, 1, 1),
    )
    assert y.tolist() == [5] * 5


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.uint8])
def test_strided_inputs_keep_their_strides(objects: Objects, dtype: mx.Dtype) -> None:
    """Views of a cache are strided; a copy would hide a kernel that ignores strides."""
    cache = mx.arange(2 * 6 * 8).reshape(2, 6, 8).astype(dtype)
    view = cache[:, 1:5].swapaxes(0, 1)
    source = """
    uint3 p = thread_position_in_grid;
    uint at = p.x + x_shape[2] * (p.y + x_shape[1] * p.z);
    y[at] = x[p.z * x_strides[0] + p.y * x_strides[1] + p.x * x_strides[2]];
    if (at == 0) { s[0] = int(x_strides[0]); s[1] = int(x_strides[1]); s[2] = x_ndim; }
    """
    y, s = _run(
        objects,
        source,
        {"x": view},
        {"y": (view.shape, dtype), "s": ((3,), mx.int32)},
        grid=(8, 2, 4),
        ensure_row_contiguous=False,
    )
    assert mx.array_equal(y, view)
    assert s.tolist() == [8, 48, 3]


def test_contiguous_copies_are_made_when_mlx_makes_them(objects: Objects) -> None:
    """With ensure_row_contiguous MLX passes a copy of a strided view."""
    x = mx.arange(24).reshape(4, 6).T
    source = "uint i = thread_position_in_grid.x; y[i] = x[i];"
    (y,) = _run(objects, source, {"x": x}, {"y": ((24,), x.dtype)}, grid=(24, 1, 1))
    assert mx.array_equal(y, mx.contiguous(x).reshape(-1))


def test_scalars_small_arrays_and_templates(objects: Objects) -> None:
    """MLX passes scalars by reference and small arrays as constant."""
    source = "y[0] = T(scale * few[2]) + T(N) + (FLAG ? T(100) : T(0)) + T(flags[1] ? 1000 : 0);"
    (y,) = _run(
        objects,
        source,
        {
            "scale": mx.array(2.0),
            "few": mx.array([1.0, 2.0, 3.0]),
            "flags": mx.array([False, True]),
        },
        {"y": ((1,), mx.float32)},
        template=[("T", mx.float32), ("N", 7), ("FLAG", True)],
        grid=(1, 1, 1),
    )
    assert y.item() == 1113.0


def test_init_value_fills_outputs(objects: Objects) -> None:
    """A kernel that adds to its output starts from init_value."""
    source = "if (x[0] == 0.0f) y[1] += bfloat16_t(1);"
    (y,) = _run(
        objects,
        source,
        {"x": mx.zeros((8,))},
        {"y": ((3,), mx.bfloat16)},
        grid=(1, 1, 1),
        init_value=2.0,
    )
    assert y.tolist() == [2.0, 3.0, 2.0]


def test_atomic_outputs_add_up_in_every_order(objects: Objects) -> None:
    """An atomic update must not be lost in any order."""
    source = """
    uint i = thread_position_in_grid.x;
    atomic_fetch_add_explicit(&y[i % 3], int(x[0]), memory_order_relaxed);
    """
    for order in ORDERS:
        (y,) = _run(
            objects,
            source,
            {"x": mx.ones((8,))},
            {"y": ((3,), mx.int32)},
            grid=(100, 1, 1),
            init_value=0,
            executor=Executor(order=order, objects=objects),
            atomic_outputs=True,
        )
        assert y.tolist() == [34, 33, 33]


def test_orders_are_real(objects: Objects) -> None:
    """The order option must change the order of threads."""
    source = """
    uint at = atomic_fetch_add_explicit((device atomic<uint>*)turn, 1u, memory_order_relaxed);
    y[at] = thread_position_in_grid.x + uint(x[0]);
    """
    seen = {}
    for order in ORDERS:
        _, y = _run(
            objects,
            source,
            {"x": mx.zeros((8,))},
            {"turn": ((1,), mx.uint32), "y": ((128,), mx.uint32)},
            grid=(128, 1, 1),
            threadgroup=(64, 1, 1),
            init_value=0,
            executor=Executor(order=order, seed=5, objects=objects),
        )
        seen[order] = y.tolist()
    assert seen["ascending"] == list(range(128))
    assert seen["descending"] == list(range(127, -1, -1))
    assert sorted(seen["random"]) == list(range(128))
    assert seen["random"] not in (seen["ascending"], seen["descending"])


@pytest.mark.parametrize("traced", [False, True])
def test_portable_fibers_give_the_same_result(objects: Objects, traced: bool) -> None:
    """Processors without an own context switch use ucontext."""
    source = """
    threadgroup float shared[64];
    uint i = thread_position_in_threadgroup.x;
    shared[i] = simd_sum(x[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = shared[63 - i] + simd_shuffle_xor(x[i], 1);
    """
    x = mx.arange(64).astype(mx.float32)
    results = [
        _run(
            objects,
            source,
            {"x": x},
            {"y": ((64,), mx.float32)},
            grid=(64, 1, 1),
            threadgroup=(64, 1, 1),
            executor=Executor(traced, objects=Objects(objects.folder, portable=portable)),
        )[0]
        for portable in (False, True)
    ]
    assert mx.array_equal(*results)
    assert not mx.isnan(results[0]).any().item()


def test_chosen_threadgroups_run_alone(objects: Objects) -> None:
    """Counting one threadgroup per class runs only selected threadgroups."""
    kernel = mx.fast.metal_kernel(
        name="chosen",
        input_names=["x"],
        output_names=["y"],
        source="y[thread_position_in_grid.x] = x[0] + 1.0f;",
    )
    run = Executor(objects=objects).run(
        kernel,
        [mx.zeros((8,))],
        grid=(10, 1, 1),
        threadgroup=(4, 1, 1),
        output_shapes=[(10,)],
        output_dtypes=[mx.float32],
        only=[(1, 0, 0), (2, 0, 0)],
    )
    assert mx.isnan(run.outputs[0]).tolist() == [True] * 4 + [False] * 6
    assert (run.counts.threadgroups, run.counts.threads) == (2, 6)


def test_declarations_are_shared_and_lines_kept() -> None:
    """Comments and pointers resemble declarations and must not be rewritten."""
    text = "// in threadgroup\nshort a;\nthreadgroup T x[4], z[2][B];\nthreadgroup T* p = x;"
    lowered = share_threadgroup_variables(without_comments(text)).splitlines()
    assert lowered[1] == "short a;"
    assert "using rt_x = T[4];" in lowered[2]
    assert "using rt_z = T[2][B];" in lowered[2]
    assert lowered[3] == "threadgroup T* p = x;"


def test_only_locals_without_a_value_are_filled() -> None:
    """A field is not a local, and a filled local with a value would lose it."""
    text = "struct pair {\n  float a;\n  T b[2];\n};\nvoid f() {\n  pair p;\n  T x[4][N];\n"
    lines = fill_unset_locals(text + "  float y = 1;\n  for (int i = 0; i < n; ++i) { g(i); }\n}")
    assert lines.splitlines()[5:7] == [
        "  pair p; rt::fill_unset(p);",
        "  T x[4][N]; rt::fill_unset(x);",
    ]
    assert lines.count("fill_unset") == 2


def test_a_local_without_a_value_is_not_a_number(objects: Objects) -> None:
    """A finite pattern times zero is zero, which hid a result tile that was not initialised."""
    source = """
    simdgroup_matrix<float, 8, 8> m;
    float a[2];
    half b;
    y[0] = 0.0f * m.thread_elements()[0] + x[0];
    y[1] = 0.0f * a[1];
    y[2] = 0.0f * float(b);
    """
    (y,) = _run(objects, source, {"x": mx.zeros((8,))}, {"y": ((3,), mx.float32)}, grid=(1, 1, 1))
    assert mx.isnan(y).tolist() == [True, True, True]
