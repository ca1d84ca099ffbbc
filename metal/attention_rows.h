// Attention of all query rows of one KV head over a range of keys; each key is read once.
//
// A threadgroup stages KEYS keys and values at a time in threadgroup memory for all its
// simdgroups. A simdgroup computes RT tiles of 8 query rows. Its queries and outputs stay in
// registers, and the softmax is a running one in base 2. The weights of a key block stay in
// registers between the two products, because the result and the left operand of a simdgroup
// multiply have the same layout.
//
// Halves. With HALVES = 2 a pair of simdgroups shares a row tile. Each holds half of the elements
// of a head (D of FULL), so that query and output fit in registers at head size 256. They add
// their scores through threadgroup memory and compute the same weights.
//
// Order of D in q . k: slot s of multiply j in a piece of 16 is element 2 * s + j. A lane then
// reads 4 adjacent elements of q and 2 of k. D is a multiple of 16.
//
// Rows: query row r of a KV head is row r % M of query head r / M of its group. Rows past the
// last one repeat it and are not stored.
//
// Masks: row i attends to key j if first(i) <= j <= last(i).

#include "matrix_lane.h"

// Below every score. Finite, because its difference with itself must be zero and because a
// relaxed math mode may assume that there are no infinities.
constant constexpr float HIDDEN = -1e30f;
constant constexpr float LOG2_E = 1.44269504088896340736f;

// Padding of a staged row, in elements: puts the rows of a tile into different memory banks.
constant constexpr int ROW_PAD = 8;

template <typename T, int D, int RT>
struct attention_rows {
  T query[RT][D / 16][4];
  matrix8 out[RT][D / 8];
  float top[RT];
  float sum[RT];
};

// Loads COUNT elements from `from`, `step` apart.
template <int COUNT, typename T>
inline void load_strided(const device T* from, long step, thread T (&into)[COUNT]) {
  if (step == 1) {
    UNROLL
    for (int i = 0; i < COUNT; ++i) {
      into[i] = from[i];
    }
  } else {
    UNROLL
    for (int i = 0; i < COUNT; ++i) {
      into[i] = from[i * step];
    }
  }
}

// Starts row tile `rt` at the query row `q` of this lane.
template <typename T, int D, int RT>
inline void begin_rows(
    thread attention_rows<T, D, RT>& rows,
    int rt,
    const device T* q,
    long step,
    int lane) {
  UNROLL
  for (int piece = 0; piece < D / 16; ++piece) {
    load_strided<4>(
        q + (16 * piece + 2 * lane_column(lane)) * step, step, rows.query[rt][piece]);
  }
  UNROLL
  for (int tile = 0; tile < D / 8; ++tile) {
    set_pair(rows.out[rt][tile], 0.0f, 0.0f);
  }
  rows.top[rt] = HIDDEN;
  rows.sum[rt] = 0.0f;
}

// Copies `n_rows` rows of D elements into a staged tile, from its row `first_row` on.
template <typename T, int D, int THREADS>
inline void stage(
    threadgroup T* tile,
    const device T* from,
    long row_step,
    long step,
    int first_row,
    int n_rows,
    int thread_index) {
  for (int at = 4 * thread_index; at < n_rows * D; at += 4 * THREADS) {
    const int row = at / D;
    const int d = at % D;
    T values[4];
    load_strided<4>(from + row * row_step + d * step, step, values);
    UNROLL
    for (int i = 0; i < 4; ++i) {
      tile[(first_row + row) * (D + ROW_PAD) + d + i] = values[i];
    }
  }
}

// Sets the rows of a staged tile from `first_row` on to zero. A hidden key has weight zero, but
// zero times an uninitialised NaN is NaN.
template <typename T, int D, int KEYS, int THREADS>
inline void clear_rows(threadgroup T* tile, int first_row, int thread_index) {
  for (int at = thread_index; at < (KEYS - first_row) * D; at += THREADS) {
    tile[(first_row + at / D) * (D + ROW_PAD) + at % D] = T(0.0f);
  }
}

// Computes the scores of row tile `rt` for KEYS staged keys of FULL elements, over the D elements
// from `keys` on.
template <typename T, int FULL, int D, int RT, int KEYS>
inline void score_keys(
    thread attention_rows<T, D, RT>& rows,
    int rt,
    const threadgroup T* keys,
    int lane,
    thread matrix8 (&score)[KEYS / 8]) {
  constexpr int LD = FULL + ROW_PAD;
  UNROLL
  for (int tile = 0; tile < KEYS / 8; ++tile) {
    const threadgroup T* key = keys + (8 * tile + lane_column(lane)) * LD + 2 * lane_row(lane);
    set_pair(score[tile], 0.0f, 0.0f);
    UNROLL
    for (int piece = 0; piece < D / 16; ++piece) {
      UNROLL
      for (int j = 0; j < 2; ++j) {
        matrix8 left;
        matrix8 right;
        set_pair(
            left,
            float(rows.query[rt][piece][j]),
            float(rows.query[rt][piece][2 + j]));
        set_pair(right, float(key[16 * piece + j]), float(key[LD + 16 * piece + j]));
        simdgroup_multiply_accumulate(score[tile], left, right, score[tile]);
      }
    }
  }
}

// Writes the scores of simdgroup `simd` for the other simdgroup of its pair.
template <int KEYS>
inline void share_scores(
    thread matrix8 (&score)[KEYS / 8], threadgroup float* shared, int simd, int lane) {
  UNROLL
  for (int tile = 0; tile < KEYS / 8; ++tile) {
    threadgroup float* pair = shared + (simd * (KEYS / 8) + tile) * 64 + 2 * lane;
    pair[0] = pair_at(score[tile], 0);
    pair[1] = pair_at(score[tile], 1);
  }
}

// Adds the scores of the other simdgroup of the pair of `simd`.
template <int KEYS>
inline void add_scores(
    thread matrix8 (&score)[KEYS / 8], const threadgroup float* shared, int simd, int lane) {
  UNROLL
  for (int tile = 0; tile < KEYS / 8; ++tile) {
    const threadgroup float* pair = shared + ((simd ^ 1) * (KEYS / 8) + tile) * 64 + 2 * lane;
    set_pair(
        score[tile], pair_at(score[tile], 0) + pair[0], pair_at(score[tile], 1) + pair[1]);
  }
}

// Adds the staged keys first_key, first_key + 1, ... with these scores to row tile `rt`. The row
// of this lane attends to the keys from `first` to `last`; `values` is its part of D elements.
template <typename T, int FULL, int D, int RT, int KEYS>
inline void take_keys(
    thread attention_rows<T, D, RT>& rows,
    int rt,
    thread matrix8 (&score)[KEYS / 8],
    const threadgroup T* values,
    float scale,
    int first_key,
    int first,
    int last,
    int lane) {
  constexpr int LD = FULL + ROW_PAD;
  const int row = lane_row(lane);
  const int column = lane_column(lane);

  float top = rows.top[rt];
  UNROLL
  for (int tile = 0; tile < KEYS / 8; ++tile) {
    UNROLL
    for (int e = 0; e < 2; ++e) {
      const int key_index = first_key + 8 * tile + column + e;
      const bool visible = key_index >= first && key_index <= last;
      const float s = visible ? pair_at(score[tile], e) * scale : HIDDEN;
      score[tile].thread_elements()[e] = s;
      top = max(top, s);
    }
  }
  top = max(top, simd_shuffle_xor(top, ushort(1)));
  top = max(top, simd_shuffle_xor(top, ushort(8)));

  const float keep = exp2(rows.top[rt] - top);
  float sum = rows.sum[rt] * keep;
  UNROLL
  for (int tile = 0; tile < KEYS / 8; ++tile) {
    const float first_weight = exp2(pair_at(score[tile], 0) - top);
    const float second_weight = exp2(pair_at(score[tile], 1) - top);
    sum += first_weight + second_weight;
    set_pair(score[tile], first_weight, second_weight);
  }
  rows.top[rt] = top;
  rows.sum[rt] = sum;

  UNROLL
  for (int d = 0; d < D / 8; ++d) {
    set_pair(rows.out[rt][d], pair_at(rows.out[rt][d], 0) * keep, pair_at(rows.out[rt][d], 1) * keep);
    UNROLL
    for (int tile = 0; tile < KEYS / 8; ++tile) {
      const threadgroup T* value = values + (8 * tile + row) * LD + 8 * d + column;
      matrix8 right;
      set_pair(right, float(value[0]), float(value[1]));
      simdgroup_multiply_accumulate(rows.out[rt][d], score[tile], right, rows.out[rt][d]);
    }
  }
}

// Writes this lane's elements of row tile `rt` from element `first` of its row `out` on. DIRECT:
// finished values. Otherwise unfinished sums, and after FULL of them the top score and the sum of
// weights.
template <bool DIRECT, typename T, int FULL, int D, int RT, typename O>
inline void store_rows(
    thread attention_rows<T, D, RT>& rows,
    int rt,
    device O* out,
    int first,
    bool wanted,
    int lane) {
  const float sum = row_sum(rows.sum[rt]);
  if (!wanted) {
    return;
  }
  const int column = lane_column(lane);
  const float divisor = DIRECT ? sum : 1.0f;
  UNROLL
  for (int d = 0; d < D / 8; ++d) {
    out[first + 8 * d + column] = O(pair_at(rows.out[rt][d], 0) / divisor);
    out[first + 8 * d + column + 1] = O(pair_at(rows.out[rt][d], 1) / divisor);
  }
  if (!DIRECT && first == 0 && column == 0) {
    out[FULL] = O(rows.top[rt]);
    out[FULL + 1] = O(sum);
  }
}
