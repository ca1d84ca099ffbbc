// Rows of a gated-delta state, spread over lanes.
//
// A simdgroup holds 8 rows of D_K floats, 4 lanes per row. Lane part p of a row holds the
// elements 16 * i + 4 * p + j (j < 4), so that the four lanes of a row together touch 64
// neighbouring bytes.

#include "unroll.h"

constant constexpr int LANES_PER_ROW = 4;
constant constexpr int ROWS_PER_SIMD = 8;

template <int DK>
inline int part_index(int i, int part) {
  return i / 4 * 16 + part * 4 + i % 4;
}

// Sum over the four lanes of a row, in each of them.
inline float row_total(float value) {
  value += simd_shuffle_xor(value, ushort(1));
  return value + simd_shuffle_xor(value, ushort(2));
}
