// Product of up to 32 rows and 8 * NT columns of a dense matrix, for the part of K of one
// simdgroup: the blocks slice, slice + slices, slice + 2 * slices, ... of 32 values each.
//
// Operands and the order of K are those of quantized_tile.h with blocks of 32. The weights are
// the left matrix, and slot k of multiply j is value 4 * k + j of the block. A lane then reads
// 8 adjacent weights per column tile and 4 adjacent values of each row of x. The last block may
// be short; values past K count as zero and are not read.

#include "matrix_lane.h"

// Loads COUNT values from `from`; values from `available` on are zero and are not read.
template <int COUNT, typename T>
inline void load_run(const device T* from, int available, thread T (&into)[COUNT]) {
  if (available >= COUNT) {
    UNROLL
    for (int i = 0; i < COUNT; ++i) {
      into[i] = from[i];
    }
  } else {
    UNROLL
    for (int i = 0; i < COUNT; ++i) {
      into[i] = i < available ? from[i] : T(0.0f);
    }
  }
}

template <int NT, int MT, typename T, typename W>
inline void dense_tile(
    const device T* x,
    const device W* w,
    int M,
    int N,
    int K,
    int first_column,
    int slice,
    int slices,
    int lane,
    thread matrix8 (&acc)[NT][MT]) {
  const int row = lane_row(lane);
  const int column = lane_column(lane);

  // Columns past N and rows past M repeat the last one; their results are not stored.
  const device W* w_row[NT];
  UNROLL
  for (int nt = 0; nt < NT; ++nt) {
    w_row[nt] = w + long(min(first_column + 8 * nt + row, N - 1)) * K;
  }
  const device T* x_row[MT][2];
  UNROLL
  for (int mt = 0; mt < MT; ++mt) {
    UNROLL
    for (int e = 0; e < 2; ++e) {
      x_row[mt][e] = x + long(min(8 * mt + column + e, M - 1)) * K;
    }
  }

  for (int block = 32 * slice; block < K; block += 32 * slices) {
    const int w_k = block + 4 * column;
    const int x_k = block + 4 * row;
    W weights[NT][8];
    UNROLL
    for (int nt = 0; nt < NT; ++nt) {
      load_run<8>(w_row[nt] + w_k, K - w_k, weights[nt]);
    }
    T values[MT][2][4];
    UNROLL
    for (int mt = 0; mt < MT; ++mt) {
      UNROLL
      for (int e = 0; e < 2; ++e) {
        load_run<4>(x_row[mt][e] + x_k, K - x_k, values[mt][e]);
      }
    }
    UNROLL
    for (int j = 0; j < 4; ++j) {
      matrix8 right[MT];
      UNROLL
      for (int mt = 0; mt < MT; ++mt) {
        set_pair(right[mt], float(values[mt][0][j]), float(values[mt][1][j]));
      }
      UNROLL
      for (int nt = 0; nt < NT; ++nt) {
        matrix8 left;
        set_pair(left, float(weights[nt][j]), float(weights[nt][4 + j]));
        UNROLL
        for (int mt = 0; mt < MT; ++mt) {
          simdgroup_multiply_accumulate(acc[nt][mt], left, right[mt], acc[nt][mt]);
        }
      }
    }
  }
}
