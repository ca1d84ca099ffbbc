// head_argmax: the COUNT best tokens of every row of a language-model head, and the sum of
// exponentials of its logits. The logits are not written to memory.
//
// x        [M, K]              T: float32, bfloat16 or float16
// w        [N, K * BITS / 32]  uint32 if QUANTIZED, else [N, K] S
// scales, biases [N, K / GROUP] S if QUANTIZED, else unused
// factors  [2]                 float32: factor on the logits, soft cap (used if CAPPED)
// values   [STRIPS, M, COUNT]  float32, best first; -3e38 for an empty place
// ids      [STRIPS, M, COUNT]  int32, the columns of `values`
// masses   [STRIPS, M, 2]      float32: largest logit, sum of exp(logit - largest)
//
// A threadgroup computes a strip of columns in tiles of 8 * NT. Within a tile its SLICES
// simdgroups share K as in quantized_verify. Then each updates the best lists of its own rows,
// one list spread over the lanes (best_list.h). Every weight is read once.
//
// Grid: (32 * SLICES, STRIPS, 1) threads in groups of (32 * SLICES, 1, 1).
// Template: T, S, QUANTIZED, BITS, GROUP, KB, NT <= 4, MT = ceil(M / 8), SLICES a power of
// two <= 8, COUNT <= 32, CAPPED.
// Threadgroup memory: 128 * NT * MT * SLICES bytes, at most 8 KB in the shipped geometries.
//
// Source: written for this project.

#include "quantized_tile.h"
#include "dense_tile.h"
#include "slice_sum.h"
#include "best_list.h"

// body
constexpr int COLUMNS = 8 * NT;
constexpr int HALF = SLICES > 1 ? SLICES / 2 : 1;
constexpr int LISTS = 8 * MT / SLICES;
threadgroup float shared[HALF * COLUMNS * 8 * MT];

const int M = x_shape[0];
const int K = x_shape[1];
const int N = w_shape[0];
const int strip = int(threadgroup_position_in_grid.y);
const int tiles = (N + COLUMNS - 1) / COLUMNS;
const int strips = int(threadgroups_per_grid.y);
const int tiles_each = (tiles + strips - 1) / strips;
const int lane = int(thread_index_in_simdgroup);
const int slice = int(simdgroup_index_in_threadgroup);

best_list best[LISTS];
exp_sum mass[LISTS];
UNROLL
for (int i = 0; i < LISTS; ++i) {
  best[i].value = NOTHING;
  best[i].id = NO_ID;
  mass[i].top = NOTHING;
  mass[i].sum = 0.0f;
}

const int last_tile = min(tiles, (strip + 1) * tiles_each);
for (int tile = strip * tiles_each; tile < last_tile; ++tile) {
  const int first_column = tile * COLUMNS;
  matrix8 acc[NT][MT];
  UNROLL
  for (int nt = 0; nt < NT; ++nt) {
    UNROLL
    for (int mt = 0; mt < MT; ++mt) {
      set_pair(acc[nt][mt], 0.0f, 0.0f);
    }
  }
  if constexpr (QUANTIZED) {
    quantized_tile<BITS, GROUP, KB, NT, MT, T, S>(
        x, w, scales, biases, M, N, K, first_column, slice, SLICES, lane, acc);
  } else {
    dense_tile<NT, MT, T, S>(x, w, M, N, K, first_column, slice, SLICES, lane, acc);
  }
  share_slices<SLICES, NT, MT>(acc, shared, slice, lane);

  const int n = first_column + lane;
  UNROLL
  for (int i = 0; i < LISTS; ++i) {
    const int m = slice + SLICES * i;
    if (m < M) {
      const bool present = lane < COLUMNS && n < N;
      float logit = NOTHING;
      if (present) {
        logit = slice_sum<SLICES, NT, MT>(shared, m * COLUMNS + lane) * factors[0];
        if (CAPPED) {
          logit = factors[1] * tanh(clamp(logit / factors[1], -15.0f, 15.0f));
        }
        add_exp(mass[i], logit, 1.0f);
      }
      offer<COUNT>(best[i], logit, present ? n : NO_ID, lane);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

UNROLL
for (int i = 0; i < LISTS; ++i) {
  const int m = slice + SLICES * i;
  if (m < M) {
    const long row = long(strip) * M + m;
    const exp_sum all = simd_exp_sum(mass[i]);
    if (lane < COUNT) {
      values[row * COUNT + lane] = best[i].value;
      ids[row * COUNT + lane] = best[i].id;
    }
    if (lane == 0) {
      masses[row * 2] = all.top;
      masses[row * 2 + 1] = all.sum;
    }
  }
}
