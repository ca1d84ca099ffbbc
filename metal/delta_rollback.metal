// delta_rollback: the states and convolution windows of many gated-delta layers as they were
// behind the first `kept` rows of a block, in one launch.
//
//   for each row t < kept:  S <- g * S + delta * k
//
// kept     [1]                 int32, 0 to M; read on the device, so nothing waits for it
// state    [L, HV, DV, DK]     float32, before the block
// tape     [L, M, HV, DV]      float32, of delta_verify
// k        [L, M, HK, DK]      float32, bfloat16 or float16
// decay    [L, M, HV]          float32
// rows     [L, WINDOW + M, C]  any float type, the window before the block and the block's rows behind it
// restored [L, HV, DV, DK]     float32
// window   [L, WINDOW, C]      that of rows, the rows kept to kept + WINDOW
//
// Grid: (32 * SIMDS, row blocks + 1, L * HV) threads in groups of (32 * SIMDS, 1, 1); a row
// block is 8 * SIMDS rows of a state. The last block of every head copies its share of the
// window instead.
// Template: DK a multiple of 16, SIMDS, WINDOW.
//
// Source: written for this project, after dflash-mlx 0.1.8 (recurrent rollback cache).

#include "delta_rows.h"

// body
constexpr int PART = DK / LANES_PER_ROW;

const int M = tape_shape[1];
const int HV = tape_shape[2];
const int DV = tape_shape[3];
const int HK = k_shape[2];
const int C = rows_shape[2];
const int layer = int(threadgroup_position_in_grid.z) / HV;
const int value_head = int(threadgroup_position_in_grid.z) % HV;
const int block = int(threadgroup_position_in_grid.y);
const int lane = int(thread_index_in_simdgroup);
const int n_kept = clamp(kept[0], 0, M);

if (block + 1 == int(threadgroups_per_grid.y)) {
  const int thread_index = int(thread_position_in_threadgroup.x);
  for (int at = value_head * 32 * SIMDS + thread_index; at < WINDOW * C; at += HV * 32 * SIMDS) {
    window[long(layer) * WINDOW * C + at] = rows[(long(layer) * (WINDOW + M) + n_kept) * C + at];
  }
  return;
}

const int key_head = value_head / (HV / HK);
const int part = lane % LANES_PER_ROW;
const int row = ROWS_PER_SIMD * (block * SIMDS + int(simdgroup_index_in_threadgroup)) +
    lane / LANES_PER_ROW;
if (row >= DV) {
  return;
}
const long state_row = ((long(layer) * HV + value_head) * DV + row) * DK;
float s[PART];
UNROLL
for (int i = 0; i < PART; ++i) {
  s[i] = state[state_row + part_index<DK>(i, part)];
}
for (int m = 0; m < n_kept; ++m) {
  const long key_at = ((long(layer) * M + m) * HK + key_head) * DK;
  const long head_at = (long(layer) * M + m) * HV + value_head;
  const float g = decay[head_at];
  const float delta = tape[head_at * DV + row];
  UNROLL
  for (int i = 0; i < PART; ++i) {
    s[i] = g * s[i];
    s[i] = fma(delta, float(k[key_at + part_index<DK>(i, part)]), s[i]);
  }
}
UNROLL
for (int i = 0; i < PART; ++i) {
  restored[state_row + part_index<DK>(i, part)] = s[i];
}
