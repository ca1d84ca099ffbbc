"""Launches of MLX's Metal kernels, from the headers in the installed wheel.

Sources are unchanged except for function constants. The bodies below call the kernels, which only
the executor allows. Geometry follows MLX 0.32.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from dflash_mlx.metal.build import Kernel, Launch
from dflash_mlx.metal.quantized_verify import QuantizedWeight

ROOT = Path(next(iter(mx.__path__)) if hasattr(mx, "__path__") else mx.__file__).parent / "include"
KERNELS = "mlx/backend/metal/kernels"
# Headers that the shim provides (executor/include/shim/mlx.h).
PROVIDED = {"utils.h", "bf16.h", "bf16_math.h", "complex.h", "defines.h", "logging.h"}
PROVIDED_STEEL = {"steel/defines.h", "steel/utils/type_traits.h"}

_INCLUDE = re.compile(r'^#include\s+["<]([^">]+)[">].*$', re.M)
_CONSTANT = re.compile(r"constant (bool|int) (\w+) \[\[function_constant\(\d+\)\]\];")


def flatten(*names: str, constants: Mapping[str, str] | None = None) -> str:
    """Return these kernel headers with their includes, each once, and values for constants."""
    seen: set[str] = set()
    text = "\n".join(_read(f"{KERNELS}/{name}", seen) for name in names)
    values = constants or {}

    def value(match: re.Match[str]) -> str:
        kind, name = match.groups()
        return f"constant constexpr {kind} {name} = {values.get(name, '0')};"

    return _CONSTANT.sub(value, text)


def _read(path: str, seen: set[str]) -> str:
    short = path.removeprefix(f"{KERNELS}/")
    if path in seen or short in PROVIDED or short in PROVIDED_STEEL or "/" not in path:
        return ""
    seen.add(path)
    text = (ROOT / path).read_text(encoding="utf-8").replace("#pragma once", "")
    return _INCLUDE.sub(lambda match: _read(match.group(1), seen), text)


@functools.cache
def _quantized_header() -> str:
    # quantized.h needs a helper for tile scheduling at the end of utils.h, which the shim lacks.
    _, _, scheduling = (ROOT / KERNELS / "utils.h").read_text().partition("// Row tile scheduling")
    return scheduling.partition("\n")[2] + flatten(
        "quantized_utils.h", "steel/gemm/gemm.h", "quantized.h"
    )


@functools.cache
def _gemv_header() -> str:
    return flatten("gemv.h")


@functools.cache
def _attention_header(causal: bool, blocks: int) -> str:
    return flatten(
        "sdpa_vector.h", constants={"do_causal": str(int(causal)), "blocks": str(blocks)}
    )


@functools.cache
def _tiled_attention_header(whole_queries: bool, whole_keys: bool) -> str:
    return flatten(
        "steel/attn/kernels/steel_attention.h",
        constants={
            "align_Q": str(int(whole_queries)),
            "align_K": str(int(whole_keys)),
            "do_causal": "1",
        },
    )


QUANTIZED = ("w", "scales", "biases", "x")
_SIZES = "int K = x_shape[1], M = x_shape[0], N = w_shape[0];\n"
_NO_BATCH = "0, nullptr, nullptr, 0, nullptr, nullptr, nullptr, nullptr"


def qmv_wide(x: mx.array, weight: QuantizedWeight) -> Launch:
    """MLX's vector kernel for a few rows: one pass over the weights per 5 rows."""
    rows, inputs = x.shape
    outputs = weight.packed.shape[0]
    lanes = 16 if weight.group_size == 32 or inputs // weight.group_size >= 16 else 8
    tiles = -(-rows // 5)
    body = _SIZES + (
        "affine_qmv_wide<T, GROUP, BITS, VECTORS, LANES, false>(w, scales, biases, x, y, K, N, M, "
        f"{_NO_BATCH}, threadgroup_position_in_grid, simdgroup_index_in_threadgroup, "
        "thread_index_in_simdgroup);\n"
    )
    per_threadgroup = 2 * (32 // lanes)
    return Launch(
        kernel=Kernel("stock_qmv_wide", QUANTIZED, ("y",), _quantized_header(), body),
        inputs=(weight.packed, weight.scales, weight.biases, x),
        template=(
            ("T", x.dtype),
            ("GROUP", weight.group_size),
            ("BITS", weight.bits),
            ("VECTORS", -(-rows // tiles)),
            ("LANES", lanes),
        ),
        grid=(32 * tiles, 2 * -(-outputs // per_threadgroup), 1),
        threadgroup=(32, 2, 1),
        output_shapes=((rows, outputs),),
        output_dtypes=(x.dtype,),
    )


def qmm_t(x: mx.array, weight: QuantizedWeight) -> Launch:
    """MLX's matrix kernel: tiles of 32 rows, so half of the multiplies are padding at 16."""
    rows, _ = x.shape
    outputs = weight.packed.shape[0]
    body = _SIZES + (
        "affine_qmm_t<T, GROUP, BITS, ALIGNED, false>(w, scales, biases, x, y, K, N, M, "
        f"{_NO_BATCH}, threadgroup_position_in_grid, thread_index_in_threadgroup, "
        "simdgroup_index_in_threadgroup, thread_index_in_simdgroup);\n"
    )
    return Launch(
        kernel=Kernel("stock_qmm_t", QUANTIZED, ("y",), _quantized_header(), body),
        inputs=(weight.packed, weight.scales, weight.biases, x),
        template=(
            ("T", x.dtype),
            ("GROUP", weight.group_size),
            ("BITS", weight.bits),
            ("ALIGNED", outputs % 32 == 0),
        ),
        grid=(32 * -(-outputs // 32), 2 * -(-rows // 32), 2),
        threadgroup=(32, 2, 2),
        output_shapes=((rows, outputs),),
        output_dtypes=(x.dtype,),
    )


def gemv_wide(x: mx.array, weight: mx.array) -> Launch:
    """MLX's vector kernel for dense weights and up to 15 rows: one pass per 5 rows."""
    rows, _ = x.shape
    outputs = weight.shape[0]
    chunks = -(-rows // 5)
    body = (
        "int K = x_shape[1], M = x_shape[0], N = w_shape[0];\n"
        "const int64_t none = 0;\n"
        "gemv_wide<T, VECTORS, 16>(w, x, nullptr, y, K, N, M, K, K, 1.0f, 0.0f, 0, nullptr, &none, "
        "&none, &none, 0, 0, threadgroup_position_in_grid, threadgroups_per_grid, "
        "simdgroup_index_in_threadgroup, thread_index_in_simdgroup);\n"
    )
    return Launch(
        kernel=Kernel("stock_gemv_wide", ("w", "x"), ("y",), _gemv_header(), body),
        inputs=(weight, x),
        template=(("T", x.dtype), ("VECTORS", -(-rows // chunks))),
        grid=(32 * chunks, 2 * -(-outputs // 4), 1),
        threadgroup=(32, 2, 1),
        output_shapes=((rows, outputs),),
        output_dtypes=(x.dtype,),
    )


def sdpa_vector(
    queries: mx.array, keys: mx.array, values: mx.array, *, causal: bool = True
) -> Launch:
    """MLX's vector attention: every (query head, row) reads all keys and values of its head.

    queries [heads, rows, dim], keys and values [kv_heads, length, dim].
    """
    heads, rows, dim = queries.shape
    kv_heads = keys.shape[0]
    body = (
        "int N = keys_shape[1];\n"
        "size_t head = size_t(keys_shape[1]) * D, sequence = D;\n"
        "sdpa_vector<T, D>(queries, keys, values, out, GQA, N, head, sequence, head, sequence, "
        "scale, nullptr, nullptr, 0, 0, 0, nullptr, 0, threadgroup_position_in_grid, "
        "threadgroups_per_grid, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);\n"
    )
    header = _attention_header(causal, 1)
    return Launch(
        kernel=Kernel(
            "stock_sdpa_vector", ("queries", "keys", "values", "scale"), ("out",), header, body
        ),
        inputs=(queries, keys, values, mx.array(dim**-0.5)),
        template=(("T", queries.dtype), ("D", dim), ("GQA", heads // kv_heads)),
        grid=(1024 * heads, rows, 1),
        threadgroup=(1024, 1, 1),
        output_shapes=(queries.shape,),
        output_dtypes=(queries.dtype,),
    )


_TILED_BODY = """
const int kv_heads = keys_shape[0], length = keys_shape[1];
const int heads = queries_shape[0], rows = queries_shape[1];
mlx::steel::AttnParams p;
p.B = 1; p.H = heads; p.D = D; p.qL = rows; p.kL = length;
p.gqa_factor = heads / kv_heads; p.scale = scale;
p.NQ = (rows + BQ - 1) / BQ; p.NK = (length + BK - 1) / BK;
p.NQ_aligned = rows / BQ; p.NK_aligned = length / BK;
p.qL_rem = rows % BQ; p.kL_rem = length % BK; p.qL_off = length - rows;
for (int i = 0; i < 2; ++i) {
  p.Q_strides[i] = int64_t(i == 0 ? heads : 1) * rows * D;
  p.O_strides[i] = p.Q_strides[i];
  p.K_strides[i] = int64_t(i == 0 ? kv_heads : 1) * length * D;
  p.V_strides[i] = p.K_strides[i];
}
p.Q_strides[2] = p.K_strides[2] = p.V_strides[2] = p.O_strides[2] = D;
attention<T, BQ, BK, D, D, 4, 1, float, float>(
    queries, keys, values, out, &p, nullptr, nullptr, nullptr, nullptr,
    thread_index_in_simdgroup, simdgroup_index_in_threadgroup, threadgroup_position_in_grid,
    thread_position_in_threadgroup);
"""


def tiled_attention(queries: mx.array, keys: mx.array, values: mx.array) -> Launch:
    """MLX's matrix attention, causal: tiles of 32 rows, every query head reads its keys again.

    queries [heads, rows, dim], keys and values [kv_heads, length, dim]; dim up to 128.
    """
    heads, rows, dim = queries.shape
    length = keys.shape[1]
    block = 16 if dim >= 128 else 32
    header = _tiled_attention_header(rows % 32 == 0, length % block == 0)
    names = ("queries", "keys", "values", "scale")
    return Launch(
        kernel=Kernel("stock_attention", names, ("out",), header, _TILED_BODY),
        inputs=(queries, keys, values, mx.array(dim**-0.5)),
        template=(("T", queries.dtype), ("D", dim), ("BQ", 32), ("BK", block)),
        grid=(32 * -(-rows // 32), 4 * heads, 1),
        threadgroup=(32, 4, 1),
        output_shapes=(queries.shape,),
        output_dtypes=(queries.dtype,),
    )
