// Where a lane of a simdgroup stands in an 8x8 matrix, and how it reaches its two elements.
//
// A simdgroup_matrix gives every lane two neighbouring elements of one row. The layout is
// not in Apple's specification; MLX's own kernels rely on it (mlx/backend/metal/kernels/
// steel/gemm/mma.h, BaseMMAFrag), and so do we.

#include "unroll.h"

typedef simdgroup_matrix<float, 8, 8> matrix8;


// Row of both elements of this lane, 0 to 7.
inline int lane_row(int lane) {
  return ((lane / 4) & 4) + ((lane / 2) % 4);
}

// Column of the first element of this lane: 0, 2, 4 or 6.
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

// Sum of the values of the 8 lanes that share a column, in each of them.
inline float column_sum(float value) {
  value += simd_shuffle_xor(value, ushort(2));
  value += simd_shuffle_xor(value, ushort(4));
  return value + simd_shuffle_xor(value, ushort(16));
}

// Sum of the values of the 4 lanes that share a row, in each of them.
inline float row_sum(float value) {
  value += simd_shuffle_xor(value, ushort(1));
  return value + simd_shuffle_xor(value, ushort(8));
}
