// The COUNT best (value, id) pairs offered to a simdgroup, best first: lane i holds pair i.
// A higher value is better; of equal values the lower id is better. The result therefore does
// not depend on the order of the offers. NaN is never listed.

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

// Offers one pair per lane. A lane without a pair passes NO_ID.
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

    // Every pair that is worse than the new one moves one lane up.
    const int moves = beats(top, top_id, best.value, best.id) ? 1 : 0;
    const float previous = simd_shuffle_up(best.value, ushort(1));
    const int previous_id = simd_shuffle_up(best.id, ushort(1));
    const int previous_moves = simd_shuffle_up(moves, ushort(1));
    if (moves == 1) {
      const bool from_below = lane > 0 && previous_moves == 1;
      best.value = from_below ? previous : top;
      best.id = from_below ? previous_id : top_id;
    }
    if (enters && id == top_id) {
      value = NOTHING;
      id = NO_ID;
    }
  }
}

// A sum of exponentials: the largest exponent and the sum relative to it.
struct exp_sum {
  float top;
  float sum;
};

inline void add_exp(thread exp_sum& mass, float top, float sum) {
  const float both = max(mass.top, top);
  mass.sum = mass.sum * exp(mass.top - both) + sum * exp(top - both);
  mass.top = both;
}

// Returns the sum over the lanes of a simdgroup, in every lane.
inline exp_sum simd_exp_sum(exp_sum mass) {
  const float top = simd_max(mass.top);
  exp_sum all;
  all.top = top;
  all.sum = simd_sum(mass.sum * exp(mass.top - top));
  return all;
}
