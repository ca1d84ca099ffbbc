// verify_attention: the last M positions attend to the L keys of a cache. Each KV head is read
// once for all its query heads and rows.
//
// q      [1, HQ, M, D]  T: float32, bfloat16 or float16; any strides
// k, v   [1, HK, L, D]  T; any strides, so views of a larger cache are read in place
// scale  []             float32
// out    [SPLITS, HQ, M, D + 2] float32: per split of the keys the unfinished sums, the top
//        score (base 2) and the sum of weights, for attention_merge;
//        or, if DIRECT (one split), [1, HQ, M, D] T, finished
//
// Row i is at position L - M + i. It attends to the keys up to that position and, if WINDOW > 0,
// only to the last WINDOW of them. Keys that are hidden from all rows are not read.
//
// Grid: (32 * SIMDS, HK * row blocks, SPLITS) threads in groups of (32 * SIMDS, 1, 1). A row
// block is 8 * RT * SIMDS / HALVES of the M * HQ / HK rows of a KV head; with one block, K and V are
// read once.
// Template: T, O (type of out), D a multiple of 16, KEYS 8 16 or 32, RT, SIMDS, HALVES 1 or
// 2 (then RT is 1 and SIMDS is even), WINDOW, DIRECT.
// Threadgroup memory: 2 * KEYS * (D + 8) * sizeof(T), at most 17 KB in the shipped geometries,
// and with HALVES = 2 also 32 * SIMDS * KEYS bytes, at most 12 KB.
//
// Source: written for this project. The running softmax is that of Milakov and Gimelshein
// (arXiv 1805.02867) and FlashAttention (arXiv 2205.14135); the split over keys is
// Flash-Decoding's.

#include "attention_rows.h"

// body
constexpr int THREADS = 32 * SIMDS;
constexpr int PART = D / HALVES;
threadgroup T keys[KEYS * (D + ROW_PAD)];
threadgroup T values[KEYS * (D + ROW_PAD)];
threadgroup float shared[HALVES == 1 ? 1 : SIMDS * KEYS * 8];

const int HQ = q_shape[1];
const int M = q_shape[2];
const int HK = k_shape[1];
const int L = k_shape[2];
const int n_rows = M * (HQ / HK);
const int head = int(threadgroup_position_in_grid.y) % HK;
const int row_block = int(threadgroup_position_in_grid.y) / HK;
const int split = int(threadgroup_position_in_grid.z);
const int splits = int(threadgroups_per_grid.z);
const int thread_index = int(thread_position_in_threadgroup.x);
const int lane = int(thread_index_in_simdgroup);

// The first row of this simdgroup's first tile, and the first element of its part of a head.
const int simd = int(simdgroup_index_in_threadgroup);
const int first_row = 8 * RT * ((row_block * SIMDS + simd) / HALVES);
const int part = simd % HALVES * PART;

attention_rows<T, PART, RT> rows;
int row_of[RT];
UNROLL
for (int rt = 0; rt < RT; ++rt) {
  row_of[rt] = min(first_row + 8 * rt + lane_row(lane), n_rows - 1);
  const long q_head = head * (HQ / HK) + row_of[rt] / M;
  begin_rows<T, PART, RT>(
      rows, rt,
      q + q_head * q_strides[1] + (row_of[rt] % M) * q_strides[2] + part * q_strides[3],
      q_strides[3], lane);
}

// Each split takes a run of whole key blocks; the numbers of blocks differ by one at most.
const int first_visible = WINDOW > 0 ? max(0, L - M - WINDOW + 1) : 0;
const int blocks = (L - first_visible + KEYS - 1) / KEYS;
const int begin = first_visible + KEYS * (blocks * split / splits);
const int end = min(L, first_visible + KEYS * (blocks * (split + 1) / splits));

const device T* k_head = k + head * k_strides[1];
const device T* v_head = v + head * v_strides[1];
for (int key = begin; key < end; key += KEYS) {
  const int present = min(KEYS, end - key);
  stage<T, D, THREADS>(
      keys, k_head + key * k_strides[2], k_strides[2], k_strides[3], 0, present, thread_index);
  stage<T, D, THREADS>(
      values, v_head + key * v_strides[2], v_strides[2], v_strides[3], 0, present, thread_index);
  clear_rows<T, D, KEYS, THREADS>(keys, present, thread_index);
  clear_rows<T, D, KEYS, THREADS>(values, present, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  matrix8 score[KEYS / 8];
  UNROLL
  for (int rt = 0; rt < RT; ++rt) {
    const bool present_rows = first_row + 8 * rt < n_rows;
    if (present_rows) {
      score_keys<T, D, PART, RT, KEYS>(rows, rt, keys + part, lane, score);
    }
    if constexpr (HALVES == 2) {
      if (present_rows) {
        share_scores<KEYS>(score, shared, simd, lane);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (present_rows) {
        add_scores<KEYS>(score, shared, simd, lane);
      }
    }
    if (present_rows) {
      const int position = L - M + row_of[rt] % M;
      const int first = WINDOW > 0 ? position - WINDOW + 1 : 0;
      take_keys<T, D, PART, RT, KEYS>(
          rows, rt, score, values + part, scale * LOG2_E, key, first, min(position, end - 1), lane);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

UNROLL
for (int rt = 0; rt < RT; ++rt) {
  const int row = first_row + 8 * rt + lane_row(lane);
  const long at = (long(split) * HQ + head * (HQ / HK) + row_of[rt] / M) * M + row_of[rt] % M;
  store_rows<DIRECT, T, D, PART, RT, O>(
      rows, rt, out + at * (DIRECT ? D : D + 2), part, row < n_rows, lane);
}
