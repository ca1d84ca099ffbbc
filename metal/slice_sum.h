// Adds the tiles of simdgroups that each computed their own part of K.
//
// `shared` holds HALF = max(1, SLICES / 2) tiles of [8 * MT rows, 8 * NT columns] floats.
// The upper half of the slices writes, the lower half adds in place, and `slice_sum` adds the
// remaining tiles. The order is fixed, so equal inputs give equal bits. All threads of the
// threadgroup call `share_slices`; when it returns, the tiles are complete.

#include "matrix_lane.h"

template <int SLICES, int NT, int MT>
inline void share_slices(
    thread matrix8 (&acc)[NT][MT],
    threadgroup float* shared,
    int slice,
    int lane) {
  constexpr int HALF = SLICES > 1 ? SLICES / 2 : 1;
  constexpr int COLUMNS = 8 * NT;
  threadgroup float* tile = shared + slice % HALF * (COLUMNS * 8 * MT);
  const int column = lane_row(lane);
  const int row = lane_column(lane);
  UNROLL
  for (int upper = 1; upper >= 0; --upper) {
    if (slice / HALF == upper) {
      UNROLL
      for (int nt = 0; nt < NT; ++nt) {
        UNROLL
        for (int mt = 0; mt < MT; ++mt) {
          UNROLL
          for (int e = 0; e < 2; ++e) {
            const int at = (8 * mt + row + e) * COLUMNS + 8 * nt + column;
            const float other = upper == 0 && SLICES > 1 ? tile[at] : 0.0f;
            tile[at] = other + pair_at(acc[nt][mt], e);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Returns element `at` = row * (8 * NT) + column of the sum of all slices.
template <int SLICES, int NT, int MT>
inline float slice_sum(const threadgroup float* shared, int at) {
  constexpr int HALF = SLICES > 1 ? SLICES / 2 : 1;
  float sum = shared[at];
  for (int slice = 1; slice < HALF; ++slice) {
    sum += shared[slice * (64 * NT * MT) + at];
  }
  return sum;
}
