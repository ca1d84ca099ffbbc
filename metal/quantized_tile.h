// Product of up to 32 rows and 8 * NT columns of an affine-quantized matrix, for the part of K
// of one simdgroup: the groups slice, slice + slices, slice + 2 * slices, ...
//
// Operands: the weights are the left matrix and the rows of x the right one. Each lane of a
// result fragment then holds one weight column, n = lane_row, and two rows of x, m = lane_column
// and the next. It needs one scale and one bias per fragment.
//
// Order of K: the product is the same for every order of K that both operands share. In a block
// of KB values, slot k of multiply j is value (KB / 8) * k + j. The KB / 4 weights that a lane
// needs for the left matrices of a block are then adjacent in memory, and so are the KB / 8
// values of x for the right ones. Each packed weight is read by one lane and unpacked once for
// all rows.
//
// Scales: with w = s * q + b, the multiplies use the integers q. Each group ends with
// s * sum(q * x) + b * sum(x); the 8 lanes of a column compute sum(x) once.

#include "matrix_lane.h"
#include "packed_values.h"

template <int BITS, int GROUP, int KB, int NT, int MT, typename T, typename S>
inline void quantized_tile(
    const device T* x,
    const device uint* w,
    const device S* scales,
    const device S* biases,
    int M,
    int N,
    int K,
    int first_column,
    int slice,
    int slices,
    int lane,
    thread matrix8 (&acc)[NT][MT]) {
  constexpr int RUN = KB / 8;
  constexpr int RUN_BYTES = 2 * RUN * BITS / 8;
  typedef typename packed_unit<unit_size(RUN_BYTES)>::type U;
  constexpr int UNITS = RUN_BYTES / int(sizeof(U));
  const int row = lane_row(lane);
  const int column = lane_column(lane);
  const int groups = K / GROUP;

  // Columns past N and rows past M repeat the last one; their results are not stored.
  const device U* w_row[NT];
  long scale_row[NT];
  UNROLL
  for (int nt = 0; nt < NT; ++nt) {
    const long n = min(first_column + 8 * nt + row, N - 1);
    w_row[nt] = (const device U*)(w + n * (K / 32 * BITS)) + column / 2 * UNITS;
    scale_row[nt] = n * groups;
  }
  const device T* x_row[MT][2];
  UNROLL
  for (int mt = 0; mt < MT; ++mt) {
    UNROLL
    for (int e = 0; e < 2; ++e) {
      x_row[mt][e] = x + long(min(8 * mt + column + e, M - 1)) * K + RUN * row;
    }
  }

  for (int group = slice; group < groups; group += slices) {
    matrix8 product[NT][MT];
    float x_sum[MT][2];
    UNROLL
    for (int mt = 0; mt < MT; ++mt) {
      x_sum[mt][0] = 0.0f;
      x_sum[mt][1] = 0.0f;
      UNROLL
      for (int nt = 0; nt < NT; ++nt) {
        set_pair(product[nt][mt], 0.0f, 0.0f);
      }
    }
    for (int block = 0; block < GROUP / KB; ++block) {
      const int k = group * GROUP + block * KB;
      U units[NT][UNITS];
      UNROLL
      for (int nt = 0; nt < NT; ++nt) {
        UNROLL
        for (int u = 0; u < UNITS; ++u) {
          units[nt][u] = w_row[nt][k / (KB / 4) * UNITS + u];
        }
      }
      T values[MT][2][RUN];
      UNROLL
      for (int mt = 0; mt < MT; ++mt) {
        UNROLL
        for (int e = 0; e < 2; ++e) {
          UNROLL
          for (int j = 0; j < RUN; ++j) {
            values[mt][e][j] = x_row[mt][e][k + j];
          }
        }
      }
      UNROLL
      for (int j = 0; j < RUN; ++j) {
        matrix8 right[MT];
        UNROLL
        for (int mt = 0; mt < MT; ++mt) {
          const float first = float(values[mt][0][j]);
          const float second = float(values[mt][1][j]);
          x_sum[mt][0] += first;
          x_sum[mt][1] += second;
          set_pair(right[mt], first, second);
        }
        UNROLL
        for (int nt = 0; nt < NT; ++nt) {
          matrix8 left;
          set_pair(
              left,
              packed_value<BITS, UNITS>(units[nt], j),
              packed_value<BITS, UNITS>(units[nt], RUN + j));
          UNROLL
          for (int mt = 0; mt < MT; ++mt) {
            simdgroup_multiply_accumulate(
                product[nt][mt], left, right[mt], product[nt][mt]);
          }
        }
      }
    }
    UNROLL
    for (int mt = 0; mt < MT; ++mt) {
      x_sum[mt][0] = column_sum(x_sum[mt][0]);
      x_sum[mt][1] = column_sum(x_sum[mt][1]);
    }
    UNROLL
    for (int nt = 0; nt < NT; ++nt) {
      const float scale = float(scales[scale_row[nt] + group]);
      const float bias = float(biases[scale_row[nt] + group]);
      UNROLL
      for (int mt = 0; mt < MT; ++mt) {
        set_pair(
            acc[nt][mt],
            pair_at(acc[nt][mt], 0) + scale * pair_at(product[nt][mt], 0) +
                bias * x_sum[mt][0],
            pair_at(acc[nt][mt], 1) + scale * pair_at(product[nt][mt], 1) +
                bias * x_sum[mt][1]);
      }
    }
  }
}
