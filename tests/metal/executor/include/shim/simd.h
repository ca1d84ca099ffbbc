// Barriers and simdgroup functions. `line`, the source line of the caller, identifies a meeting.
#pragma once

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
};
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

inline void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  rt::barrier(uint(flags), line);
}
inline void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  rt::simd_barrier(uint(flags), line);
}

namespace meeting {

template <class T>
inline T& in(rt::Group& group, uint32_t i) {
  return *reinterpret_cast<T*>(group.lanes[i].in);
}
template <class T>
inline T& out(rt::Group& group, uint32_t i) {
  return *reinterpret_cast<T*>(group.lanes[i].out);
}
inline bool came(uint32_t lanes, uint32_t i) { return (lanes >> i) & 1u; }

// Writes `argument`, waits for the other lanes and returns the result.
template <class Result, class Argument>
inline Result call(const Argument& argument, rt::Combine combine, int line) {
  static_assert(sizeof(Argument) <= sizeof(rt::Lane::in), "argument too large for a meeting");
  rt::Lane* me = rt::lane;
  memcpy(me->in, static_cast<const void*>(&argument), sizeof argument);
  rt::meet(combine, line);
  Result result;
  memcpy(static_cast<void*>(&result), me->out, sizeof result);
  return result;
}

// Butterfly order (xor 1, 2, 4, 8, 16), the order that current Apple GPUs add in.
template <class T, class Op>
void reduce(rt::Group& group, uint32_t lanes) {
  T value[32];
  uint32_t has = lanes;
  for (uint32_t i = 0; i < 32; ++i)
    if (came(lanes, i)) value[i] = in<T>(group, i);
  for (uint32_t step = 1; step < 32; step *= 2)
    for (uint32_t i = 0; i < 32; i += 2 * step) {
      if (!came(has, i + step)) continue;
      value[i] = came(has, i) ? Op::apply(value[i], value[i + step]) : value[i + step];
      has |= 1u << i;
    }
  for (uint32_t i = 0; i < group.size; ++i)
    if (came(lanes, i)) out<T>(group, i) = value[0];
}

template <class T, class Op, bool Inclusive>
void scan(rt::Group& group, uint32_t lanes) {
  T total = T(Op::identity);
  for (uint32_t i = 0; i < group.size; ++i) {
    if (!came(lanes, i)) continue;
    const T mine = in<T>(group, i);
    const T before = total;
    total = Op::apply(total, mine);
    out<T>(group, i) = Inclusive ? total : before;
  }
}

template <class T>
struct Fetch {
  T value;
  T otherwise;
  int32_t from;
  bool fill;
};
// Reading a lane that is absent or did not come is undefined in Metal: it yields all ones here.
template <class T>
void fetch(rt::Group& group, uint32_t lanes) {
  for (uint32_t i = 0; i < group.size; ++i) {
    if (!came(lanes, i)) continue;
    const Fetch<T>& mine = in<Fetch<T>>(group, i);
    const bool inside = mine.from >= 0 && mine.from < 32;
    if (inside && came(lanes, uint32_t(mine.from)))
      out<T>(group, i) = in<Fetch<T>>(group, uint32_t(mine.from)).value;
    else if (mine.fill && !inside)
      out<T>(group, i) = mine.otherwise;
    else
      memset(group.lanes[i].out, 0xFF, sizeof(T));
  }
}
template <class T>
inline T shuffle(T value, int from, int line) {
  return call<T>(Fetch<T>{value, value, from, false}, &fetch<T>, line);
}
template <class T>
inline T shuffle_fill(T value, T otherwise, int from, int line) {
  return call<T>(Fetch<T>{value, otherwise, from, true}, &fetch<T>, line);
}

struct Votes {
  uint32_t yes, present;
};
inline void vote(rt::Group& group, uint32_t lanes) {
  uint32_t yes = 0;
  for (uint32_t i = 0; i < group.size; ++i)
    if (came(lanes, i) && in<uint32_t>(group, i)) yes |= 1u << i;
  for (uint32_t i = 0; i < group.size; ++i)
    if (came(lanes, i)) out<Votes>(group, i) = {yes, lanes};
}
inline Votes votes(bool mine, int line) { return call<Votes>(uint32_t(mine), &vote, line); }

#define SHIM_OP(name, start, expression)                                           \
  struct name {                                                                    \
    static constexpr int identity = start;                                         \
    template <class T>                                                             \
    static T apply(T a, T b) { return T(expression); }                             \
  };
SHIM_OP(Sum, 0, a + b) SHIM_OP(Product, 1, a * b)
SHIM_OP(Max, 0, metal::max(a, b)) SHIM_OP(Min, 0, metal::min(a, b))
SHIM_OP(And, 0, a & b) SHIM_OP(Or, 0, a | b) SHIM_OP(Xor, 0, a ^ b)

}  // namespace meeting

#define SHIM_LINE int line = __builtin_LINE()
#define SHIM_REDUCE(name, Op)                                                      \
  template <class T>                                                               \
  inline T name(T v, SHIM_LINE) {                                                  \
    return meeting::call<T>(v, &meeting::reduce<T, meeting::Op>, line);            \
  }
SHIM_REDUCE(simd_sum, Sum) SHIM_REDUCE(simd_product, Product)
SHIM_REDUCE(simd_max, Max) SHIM_REDUCE(simd_min, Min)
SHIM_REDUCE(simd_and, And) SHIM_REDUCE(simd_or, Or) SHIM_REDUCE(simd_xor, Xor)

#define SHIM_SCAN(name, Op, inclusive)                                             \
  template <class T>                                                               \
  inline T name(T v, SHIM_LINE) {                                                  \
    return meeting::call<T>(v, &meeting::scan<T, meeting::Op, inclusive>, line);   \
  }
SHIM_SCAN(simd_prefix_inclusive_sum, Sum, true) SHIM_SCAN(simd_prefix_exclusive_sum, Sum, false)
SHIM_SCAN(simd_prefix_inclusive_product, Product, true)
SHIM_SCAN(simd_prefix_exclusive_product, Product, false)

#define SHIM_SHUFFLE(name, from)                                                   \
  template <class T>                                                               \
  inline T name(T v, ushort n, SHIM_LINE) {                                        \
    const int self = int(rt::lane->lane);                                          \
    (void)self;                                                                    \
    return meeting::shuffle<T>(v, from, line);                                     \
  }
SHIM_SHUFFLE(simd_broadcast, n) SHIM_SHUFFLE(simd_shuffle, n)
SHIM_SHUFFLE(simd_shuffle_xor, self ^ n)
// Lanes without a source keep their own value (Metal Shading Language Specification, simd_shuffle_up).
SHIM_SHUFFLE(simd_shuffle_down, self + n < 32 ? self + n : self)
SHIM_SHUFFLE(simd_shuffle_up, self >= n ? self - n : self)
SHIM_SHUFFLE(simd_shuffle_rotate_down, (self + n) & 31)
SHIM_SHUFFLE(simd_shuffle_rotate_up, (self - n) & 31)
SHIM_SHUFFLE(quad_broadcast, (self & ~3) + n) SHIM_SHUFFLE(quad_shuffle, (self & ~3) + n)
SHIM_SHUFFLE(quad_shuffle_xor, self ^ (n & 3))

template <class T>
inline T simd_shuffle_and_fill_down(T v, T fill, ushort n, SHIM_LINE) {
  return meeting::shuffle_fill<T>(v, fill, int(rt::lane->lane) + n, line);
}
template <class T>
inline T simd_shuffle_and_fill_up(T v, T fill, ushort n, SHIM_LINE) {
  return meeting::shuffle_fill<T>(v, fill, int(rt::lane->lane) - n, line);
}

struct simd_vote {
  uint64_t bits;
  bool all() const { return bits == 0xffffffffull; }
  bool any() const { return bits != 0; }
  explicit operator uint64_t() const { return bits; }
};
inline simd_vote simd_ballot(bool p, SHIM_LINE) { return {meeting::votes(p, line).yes}; }
inline bool simd_any(bool p, SHIM_LINE) { return meeting::votes(p, line).yes != 0; }
inline bool simd_all(bool p, SHIM_LINE) {
  const meeting::Votes v = meeting::votes(p, line);
  return v.yes == v.present;
}
inline bool simd_is_first(SHIM_LINE) {
  return uint(__builtin_ctz(meeting::votes(true, line).present)) == rt::lane->lane;
}
template <class T>
inline T simd_broadcast_first(T v, SHIM_LINE) {
  const int first = __builtin_ctz(meeting::votes(true, line).present);
  return meeting::shuffle<T>(v, first, line);
}

#define SHIM_QUAD(name, combine)                                                   \
  template <class T>                                                               \
  inline T name(T v, SHIM_LINE) {                                                  \
    T other = simd_shuffle_xor(v, 1, line);                                        \
    v = T(combine);                                                                \
    other = simd_shuffle_xor(v, 2, line);                                          \
    return T(combine);                                                             \
  }
SHIM_QUAD(quad_sum, v + other) SHIM_QUAD(quad_max, max(v, other)) SHIM_QUAD(quad_min, min(v, other))

}  // namespace metal
