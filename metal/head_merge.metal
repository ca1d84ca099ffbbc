// head_merge: merges the strips of head_argmax.
//
// values  [STRIPS, M, COUNT]  float32, best first
// ids     [STRIPS, M, COUNT]  int32
// masses  [STRIPS, M, 2]      float32: largest logit, sum of exp(logit - largest)
// logits       [M, COUNT]     float32, best first
// tokens       [M, COUNT]     int32
// log_sum_exp  [M]            float32
//
// One threadgroup per row. Its simdgroups share the strips; the first one merges their lists.
// Grid: (32 * SIMDS, M, 1) threads in groups of (32 * SIMDS, 1, 1).
// Template: COUNT <= 32, SIMDS <= 32.
// Threadgroup memory: 8 * SIMDS * COUNT bytes.
//
// Source: written for this project.

#include "best_list.h"

// body
threadgroup float list_values[SIMDS * COUNT];
threadgroup int list_ids[SIMDS * COUNT];

const int strips = values_shape[0];
const int M = values_shape[1];
const int m = int(threadgroup_position_in_grid.y);
const int lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup);

best_list best;
best.value = NOTHING;
best.id = NO_ID;
for (int first = 32 * simd; first < strips * COUNT; first += 32 * SIMDS) {
  const int at = first + lane;
  const bool present = at < strips * COUNT;
  const long from = present ? (long(at / COUNT) * M + m) * COUNT + at % COUNT : 0;
  offer<COUNT>(best, present ? values[from] : NOTHING, present ? ids[from] : NO_ID, lane);
}
if (lane < COUNT) {
  list_values[simd * COUNT + lane] = best.value;
  list_ids[simd * COUNT + lane] = best.id;
}
threadgroup_barrier(mem_flags::mem_threadgroup);

if (simd == 0) {
  for (int other = 1; other < SIMDS; ++other) {
    const bool present = lane < COUNT;
    const int from = other * COUNT + (present ? lane : 0);
    offer<COUNT>(
        best, present ? list_values[from] : NOTHING, present ? list_ids[from] : NO_ID, lane);
  }
  exp_sum mass;
  mass.top = NOTHING;
  mass.sum = 0.0f;
  for (int strip = lane; strip < strips; strip += 32) {
    const long from = (long(strip) * M + m) * 2;
    add_exp(mass, masses[from], masses[from + 1]);
  }
  const exp_sum all = simd_exp_sum(mass);
  if (lane < COUNT) {
    logits[m * COUNT + lane] = best.value;
    tokens[m * COUNT + lane] = best.id;
  }
  if (lane == 0) {
    log_sum_exp[m] = all.top + log(all.sum);
  }
}
