// dense_verify: y = x . w^T for the 2 to 32 rows of a verified block.
//
// x  [M, K] or [1, M, K]  T: float32, bfloat16 or float16
// w  [N, K]  W: float32, bfloat16 or float16
// y  [M, N] or [1, M, N]  T, accumulated in float32
//
// A threadgroup computes 8 * NT columns for all rows, so every weight is read once for any M.
// Its SLICES simdgroups share K and add their results at the end. The loop has no barrier and
// uses no threadgroup memory. dense_tile.h describes the operands and the order of K.
//
// Grid: (32 * SLICES, ceil(N / (8 * NT)), 1) threads in groups of (32 * SLICES, 1, 1).
// Template: T, W, NT, MT = ceil(M / 8), SLICES a power of two.
// Threadgroup memory: 128 * NT * MT * SLICES bytes, at most 8 KB in the shipped geometries.
//
// Source: written for this project.

#include "dense_tile.h"
#include "slice_sum.h"

// body
constexpr int COLUMNS = 8 * NT;
constexpr int HALF = SLICES > 1 ? SLICES / 2 : 1;
threadgroup float shared[HALF * COLUMNS * 8 * MT];

const int M = x_shape[x_ndim - 2];
const int K = x_shape[x_ndim - 1];
const int N = w_shape[0];
const int first_column = int(threadgroup_position_in_grid.y) * COLUMNS;
const int lane = int(thread_index_in_simdgroup);
const int slice = int(simdgroup_index_in_threadgroup);

matrix8 acc[NT][MT];
UNROLL
for (int nt = 0; nt < NT; ++nt) {
  UNROLL
  for (int mt = 0; mt < MT; ++mt) {
    set_pair(acc[nt][mt], 0.0f, 0.0f);
  }
}
dense_tile<NT, MT, T, W>(x, w, M, N, K, first_column, slice, SLICES, lane, acc);
share_slices<SLICES, NT, MT>(acc, shared, slice, lane);

for (int at = int(thread_position_in_threadgroup.x); at < COLUMNS * 8 * MT; at += 32 * SLICES) {
  const int m = at / COLUMNS;
  const int n = first_column + at % COLUMNS;
  if (m < M && n < N) {
    y[long(m) * N + n] = T(slice_sum<SLICES, NT, MT>(shared, at));
  }
}
