// delta_verify: the gated delta rule over the rows of a block, with the tape that a rollback
// needs. For each row t, value row S of the state (length DK), key k, value v:
//
//   S <- g * S;  delta = beta * (v - S . k);  S <- S + delta * k;  y = S . q
//
// q, k         [1, M, HK, DK]   T: float32, bfloat16 or float16
// v            [1, M, HV, DV]   T
// decay        [1, M, HV]       float32, g above
// strength     [1, M, HV]       T, beta above
// state        [1, HV, DV, DK]  float32
// y            [1, M, HV, DV]   T
// tape         [1, M, HV, DV]   float32, the deltas
// after        [1, HV, DV, DK]  float32, the state behind the last row
//
// The state is read and written once, whatever M is; a simdgroup keeps 8 of its rows in
// registers (delta_rows.h). Replaying a prefix of the tape repeats the same float32 operations
// in the same order, so delta_rollback gives the very bits of a shorter block; fma is spelt out
// because a compiler may contract a product and a sum in one kernel and not in the other.
//
// Grid: (32 * SIMDS, ceil(DV / (8 * SIMDS)), HV) threads in groups of (32 * SIMDS, 1, 1).
// Template: T, DK a multiple of 16, SIMDS.
//
// Source: written for this project; Gated DeltaNet (arXiv 2412.06464), in the form of mlx-lm's
// gated_delta_ops. The tape is that of dflash-mlx 0.1.8 (recurrent rollback cache).

#include "delta_rows.h"

// body
constexpr int PART = DK / LANES_PER_ROW;

const int M = q_shape[1];
const int HK = q_shape[2];
const int HV = v_shape[2];
const int DV = v_shape[3];
const int value_head = int(threadgroup_position_in_grid.z);
const int key_head = value_head / (HV / HK);
const int lane = int(thread_index_in_simdgroup);
const int part = lane % LANES_PER_ROW;
const int first_row = ROWS_PER_SIMD *
    (int(threadgroup_position_in_grid.y) * SIMDS + int(simdgroup_index_in_threadgroup));
const int row = first_row + lane / LANES_PER_ROW;
const bool wanted = row < DV;
const int from = min(row, DV - 1);

const long state_row = (long(value_head) * DV + from) * DK;
float s[PART];
UNROLL
for (int i = 0; i < PART; ++i) {
  s[i] = state[state_row + part_index<DK>(i, part)];
}
for (int m = 0; m < M; ++m) {
  const long key_at = (long(m) * HK + key_head) * DK;
  const long head_at = long(m) * HV + value_head;
  const float g = decay[head_at];
  float keys[PART];
  float recalled = 0.0f;
  UNROLL
  for (int i = 0; i < PART; ++i) {
    keys[i] = float(k[key_at + part_index<DK>(i, part)]);
    s[i] = g * s[i];
    recalled = fma(s[i], keys[i], recalled);
  }
  recalled = row_total(recalled);
  const long value_at = head_at * DV + from;
  const float delta = float(strength[head_at]) * (float(v[value_at]) - recalled);
  float read = 0.0f;
  UNROLL
  for (int i = 0; i < PART; ++i) {
    s[i] = fma(delta, keys[i], s[i]);
    read = fma(s[i], float(q[key_at + part_index<DK>(i, part)]), read);
  }
  read = row_total(read);
  if (wanted && part == 0) {
    y[value_at] = T(read);
    tape[value_at] = delta;
  }
}
if (wanted) {
  UNROLL
  for (int i = 0; i < PART; ++i) {
    after[state_row + part_index<DK>(i, part)] = s[i];
  }
}
