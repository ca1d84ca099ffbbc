// The COUNT best (value, id) pairs that a simdgroup has seen, best first: lane i holds the
// i-th. Higher values win, equal values go to the lower id, so the result does not depend on
// the order of the offers. NaN never enters.

#include "matrix_lane.h"

constant constexpr float NOTHING = -3.0e38f;
constant constexpr int NO_ID = 0x7fffffff;

struct best_list {
  float value;
  int id;
};

inline bool beats(float value, int id, float other, int other_id) {
  return value > other || (value == other && id < other_id);
}

// Offers one pair per lane; NO_ID offers nothing.
template <int COUNT>
inline void offer(thread best_list& best, float value, int id, int lane) {
  while (true) {
    const float least = simd_shuffle(best.value, ushort(COUNT - 1));
    const int least_id = simd_shuffle(best.id, ushort(COUNT - 1));
    const bool enters = beats(value, id, least, least_id);
    if (!simd_any(enters)) {
      return;
    }
    const float top = simd_max(enters ? value : NOTHING);
    const int top_id = simd_min(enters && value == top ? id : NO_ID);

    // Everything behind the newcomer moves one lane up.
    const int behind = beats(top, top_id, best.value, best.id) ? 1 : 0;
    const float previous = simd_shuffle_up(best.value, ushort(1));
    const int previous_id = simd_shuffle_up(best.id, ushort(1));
    const int previous_behind = simd_shuffle_up(behind, ushort(1));
    if (behind == 1) {
      const bool moved = lane > 0 && previous_behind == 1;
      best.value = moved ? previous : top;
      best.id = moved ? previous_id : top_id;
    }
    if (enters && id == top_id) {
      value = NOTHING;
      id = NO_ID;
    }
  }
}

// A sum of exponentials kept as its greatest exponent and the sum relative to it.
struct exp_sum {
  float top;
  float sum;
};

inline void add_exp(thread exp_sum& mass, float top, float sum) {
  const float both = max(mass.top, top);
  mass.sum = mass.sum * exp(mass.top - both) + sum * exp(top - both);
  mass.top = both;
}

// The sum over the lanes of a simdgroup, in every lane.
inline exp_sum simd_exp_sum(exp_sum mass) {
  const float top = simd_max(mass.top);
  exp_sum all;
  all.top = top;
  all.sum = simd_sum(mass.sum * exp(mass.top - top));
  return all;
}
