// block_attention: the B rows of a draft block attend to the context cache and to the block
// itself, which are separate arrays. Each KV head is read once for all its query heads and rows.
//
// q                    [1, HQ, B, D]  T: float32, bfloat16 or float16; any strides
// context_k, context_v [1, HK, C, D]  T; any strides, so a view of a larger cache works
// block_k, block_v     [1, HK, B, D]  T; any strides
// scale                []             float32
// out    [SPLITS, HQ, B, D + 2] float32: per split of the keys the unfinished sums, the top
//        score (base 2) and the sum of weights, for attention_merge;
//        or, if DIRECT (one split), [1, HQ, B, D] T, finished
//
// The C context rows are at positions 0 to C - 1, row i of the block at position C + i.
// WINDOW > 0 hides context rows at a distance of WINDOW or more; the block itself is always
// visible. CAUSAL hides later rows of the block from a row; otherwise each row attends to the
// whole block. Keys that are hidden from all rows are not read.
//
// Grid: (32 * SIMDS, HK * row blocks, SPLITS) threads in groups of (32 * SIMDS, 1, 1). A row
// block is 8 * RT * SIMDS / HALVES of the B * HQ / HK rows of a KV head; with one block, keys and
// values are read once.
// Template: T, O (type of out), D a multiple of 16, KEYS 8 16 or 32, RT, SIMDS, HALVES 1 or
// 2 (then RT is 1 and SIMDS is even), WINDOW, CAUSAL, DIRECT.
// Threadgroup memory: 2 * KEYS * (D + 8) * sizeof(T), at most 17 KB in the shipped geometries,
// and with HALVES = 2 also 32 * SIMDS * KEYS bytes, at most 12 KB.
//
// Source: written for this project; the masks are those of DFlash (arXiv 2602.06036) and of
// the dflash package, where a sliding layer sees context at a distance below its window.

#include "attention_rows.h"

// body
constexpr int THREADS = 32 * SIMDS;
constexpr int PART = D / HALVES;
threadgroup T keys[KEYS * (D + ROW_PAD)];
threadgroup T values[KEYS * (D + ROW_PAD)];
threadgroup float shared[HALVES == 1 ? 1 : SIMDS * KEYS * 8];

const int HQ = q_shape[1];
const int M = q_shape[2];
const int HK = context_k_shape[1];
const int context = context_k_shape[2];
const int L = context + M;
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
const int first_visible = WINDOW > 0 ? max(0, context - WINDOW + 1) : 0;
const int blocks = (L - first_visible + KEYS - 1) / KEYS;
const int begin = first_visible + KEYS * (blocks * split / splits);
const int end = min(L, first_visible + KEYS * (blocks * (split + 1) / splits));

for (int key = begin; key < end; key += KEYS) {
  const int present = min(KEYS, end - key);
  const int from_context = clamp(context - key, 0, present);
  const long first_context = min(key, context - 1);
  const long first_block = max(key - context, 0);
  stage<T, D, THREADS>(
      keys,
      context_k + head * context_k_strides[1] + first_context * context_k_strides[2],
      context_k_strides[2], context_k_strides[3], 0, from_context, thread_index);
  stage<T, D, THREADS>(
      keys,
      block_k + head * block_k_strides[1] + first_block * block_k_strides[2],
      block_k_strides[2], block_k_strides[3], from_context, present - from_context,
      thread_index);
  stage<T, D, THREADS>(
      values,
      context_v + head * context_v_strides[1] + first_context * context_v_strides[2],
      context_v_strides[2], context_v_strides[3], 0, from_context, thread_index);
  stage<T, D, THREADS>(
      values,
      block_v + head * block_v_strides[1] + first_block * block_v_strides[2],
      block_v_strides[2], block_v_strides[3], from_context, present - from_context,
      thread_index);
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
      const int position = context + row_of[rt] % M;
      const int first = WINDOW > 0 ? min(position - WINDOW + 1, context) : 0;
      const int last = min(CAUSAL ? position : L - 1, end - 1);
      take_keys<T, D, PART, RT, KEYS>(
          rows, rt, score, values + part, scale * LOG2_E, key, first, last, lane);
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
