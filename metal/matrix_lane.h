// The two elements of an 8x8 matrix that a lane of a simdgroup holds.
//
// Every lane holds two adjacent elements of one row. The layout is not part of Apple's
// specification. MLX's own kernels rely on it too (mlx/backend/metal/kernels/steel/gemm/mma.h,
// BaseMMAFrag).

#include "unroll.h"

typedef simdgroup_matrix<float, 8, 8> matrix8;

// Returns the row of both elements of this lane, 0 to 7.
inline int lane_row(int lane) {
  return ((lane / 4) & 4) + ((lane / 2) % 4);
}

// Returns the column of the first element of this lane: 0, 2, 4 or 6.
inline int lane_column(int lane) {
  return ((lane / 4) & 2) * 2 + (lane % 2) * 2;
}

inline void set_pair(thread matrix8& m, float first, float second) {
  m.thread_elements()[0] = first;
  m.thread_elements()[1] = second;
}

inline float pair_at(thread matrix8& m, int element) {
  return m.thread_elements()[element];
}

// Returns the sum of the values of the 8 lanes that share a column, in each of them.
inline float column_sum(float value) {
  value += simd_shuffle_xor(value, ushort(2));
  value += simd_shuffle_xor(value, ushort(4));
  return value + simd_shuffle_xor(value, ushort(16));
}

// Returns the sum of the values of the 4 lanes that share a row, in each of them.
inline float row_sum(float value) {
  value += simd_shuffle_xor(value, ushort(1));
  return value + simd_shuffle_xor(value, ushort(8));
}
