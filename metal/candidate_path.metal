// candidate_path: DFlash 2's left-to-right path selection among the candidates of every block
// row, in one launch.
//
//   score[k] = unary[t, k] + sum over r of before[previous, r] * projected[t, r] * after[cand, r]
//   previous = cand of the best score / temperature + noise
//
// anchor      [1]         int32, the token before the first row
// candidates  [S, KC]     int32, KC <= 32
// unary       [S, KC]     float32
// projected   [S, R]      T: float32, bfloat16 or float16
// before      [V, R]      W, the predecessor codebook
// after       [V, R]      W, the successor codebook
// noise       [S, KC]     float32, zeros for the greedy path, Gumbel noise to sample
// inverse     [1]         float32, 1 / temperature, 1 for the greedy path
// chosen      [S]         int32, the tokens
// log_probs   [S, KC]     float32, log softmax of score / temperature, per candidate
//
// One threadgroup. For each row, simdgroup s scores the candidates s, s + SIMDS, ..., then the
// first simdgroup selects one. Of equal scores the earlier candidate is selected.
//
// Grid: (32 * SIMDS, 1, 1) threads in one group.
// Template: T, W, KC, SIMDS.
// Threadgroup memory: 4 * KC + 4 bytes.
//
// Source: written for this project; DFlash 2 (Inco AI, 2026-08), in the dflash package 0.1.0.

#include "unroll.h"

// body
threadgroup float scores[KC];
threadgroup int previous[1];

const int S = projected_shape[0];
const int R = projected_shape[1];
const int lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup);

if (simd == 0 && lane == 0) {
  previous[0] = anchor[0];
}
threadgroup_barrier(mem_flags::mem_threadgroup);

for (int t = 0; t < S; ++t) {
  const long from = long(previous[0]) * R;
  for (int candidate = simd; candidate < KC; candidate += SIMDS) {
    const long to = long(candidates[t * KC + candidate]) * R;
    float sum = 0.0f;
    for (int r = lane; r < R; r += 32) {
      sum += float(before[from + r]) * float(projected[t * R + r]) * float(after[to + r]);
    }
    sum = simd_sum(sum);
    if (lane == 0) {
      scores[candidate] = (unary[t * KC + candidate] + sum) * inverse[0];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (simd == 0) {
    const bool present = lane < KC;
    const int at = t * KC + (present ? lane : 0);
    const float score = scores[present ? lane : 0];
    const float top = simd_max(score);
    const float total = simd_sum(present ? exp(score - top) : 0.0f);
    if (present) {
      log_probs[at] = score - top - log(total);
    }
    const float key = score + noise[at];
    const float best = simd_max(key);
    const int winner = simd_min(present && key == best ? lane : KC);
    if (lane == 0) {
      // A row of NaN has no best score. Its first candidate is a valid index into the codebooks.
      const int token = candidates[t * KC + (winner < KC ? winner : 0)];
      chosen[t] = token;
      previous[0] = token;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
