// Unpacks values of 2, 3, 4, 5, 6 or 8 bits from a row of packed weights.
//
// MLX packs a row as one little-endian stream of bits: value i of a run is the bits
// [BITS * i, BITS * (i + 1)). A lane reads runs of 8 or 16 values that start on a byte. The unit of
// a load is the widest type whose size divides the bytes of a run, so every load is aligned: 16
// values of 3 bits are 3 loads of 2 bytes.

inline constexpr int unit_size(int run_bytes) {
  return run_bytes % 4 == 0 ? 4 : (run_bytes % 2 == 0 ? 2 : 1);
}

template <int SIZE>
struct packed_unit {
  typedef uchar type;
};
template <>
struct packed_unit<2> {
  typedef ushort type;
};
template <>
struct packed_unit<4> {
  typedef uint type;
};

// Returns value i of the run in `units`. After unrolling, i is a constant.
template <int BITS, int UNITS, typename U>
inline float packed_value(const thread U (&units)[UNITS], int i) {
  constexpr int UNIT_BITS = 8 * sizeof(U);
  const int at = BITS * i / UNIT_BITS;
  const int shift = BITS * i % UNIT_BITS;
  uint bits = uint(units[at]) >> shift;
  if (shift + BITS > UNIT_BITS) {
    bits |= uint(units[at + 1]) << (UNIT_BITS - shift);
  }
  return float(bits & ((1u << BITS) - 1u));
}
