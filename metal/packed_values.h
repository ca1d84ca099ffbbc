// Reading values of 2, 3, 4, 5, 6 or 8 bits from a row of packed weights.
//
// MLX packs a row as one little-endian stream of bits, so value i of a run occupies the bits
// [BITS * i, BITS * (i + 1)). A lane reads runs of 8 or 16 values that start on a byte. The
// unit of reading is the widest one that every run of this width is a multiple of.

template <int BITS>
struct packed_unit {
  typedef uchar type;
};
template <>
struct packed_unit<2> {
  typedef ushort type;
};
template <>
struct packed_unit<6> {
  typedef ushort type;
};
template <>
struct packed_unit<4> {
  typedef uint type;
};
template <>
struct packed_unit<8> {
  typedef uint type;
};

// Value i of the run held in `units`; i is a constant wherever the loops are unrolled.
template <int BITS, typename U>
inline float packed_value(const thread U* units, int i) {
  constexpr int UNIT_BITS = 8 * sizeof(U);
  const int at = BITS * i / UNIT_BITS;
  const int shift = BITS * i % UNIT_BITS;
  uint bits = uint(units[at]) >> shift;
  if (shift + BITS > UNIT_BITS) {
    bits |= uint(units[at + 1]) << (UNIT_BITS - shift);
  }
  return float(bits & ((1u << BITS) - 1u));
}
