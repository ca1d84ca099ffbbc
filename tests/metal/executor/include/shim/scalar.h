// half and bfloat: 16-bit storage, arithmetic in float, every operation rounded to the type.
// Conversions follow the Metal specification: float -> half is implicit, float -> bfloat is not.
#pragma once

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using ulong = unsigned long;

namespace shim {

constexpr uint32_t float_bits(float f) { return __builtin_bit_cast(uint32_t, f); }
constexpr float bits_float(uint32_t u) { return __builtin_bit_cast(float, u); }

constexpr float widen_half(uint16_t h) {
#if defined(__F16C__)
  if (!__builtin_is_constant_evaluated()) {
    typedef short v8hi __attribute__((vector_size(16)));
    return __builtin_ia32_vcvtph2ps(v8hi{short(h)})[0];
  }
#endif
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 1023u;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = float(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -tiny : tiny;
}

constexpr uint16_t narrow_half(float f) {
#if defined(__F16C__)
  if (!__builtin_is_constant_evaluated()) {
    typedef float v4sf __attribute__((vector_size(16)));
    return uint16_t(__builtin_ia32_vcvtps2ph(v4sf{f}, 0)[0]);
  }
#endif
  uint32_t u = float_bits(f);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return sign | 0x7e00;
  if (u >= 0x477ff000u) return sign | 0x7c00;
  if (u < 0x38800000u) return sign | uint16_t(float_bits(bits_float(u) + 0.5f) - 0x3f000000u);
  return sign | uint16_t((u + 0xfffu + ((u >> 13) & 1u) - 0x38000000u) >> 13);
}

constexpr float widen_bfloat(uint16_t b) { return bits_float(uint32_t(b) << 16); }

constexpr uint16_t narrow_bfloat(float f) {
  const uint32_t u = float_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

template <class I>
using if_integral = std::enable_if_t<std::is_integral<I>::value, int>;

}  // namespace shim

struct half {
  uint16_t bits;
  half() = default;
  constexpr half(float f) : bits(shim::narrow_half(f)) {}
  template <class I, shim::if_integral<I> = 0>
  constexpr half(I i) : bits(shim::narrow_half(float(i))) {}
  constexpr operator float() const { return shim::widen_half(bits); }
};

struct bfloat {
  uint16_t bits;
  bfloat() = default;
  constexpr explicit bfloat(float f) : bits(shim::narrow_bfloat(f)) {}
  constexpr explicit bfloat(half h) : bits(shim::narrow_bfloat(float(h))) {}
  template <class I, shim::if_integral<I> = 0>
  constexpr bfloat(I i) : bits(shim::narrow_bfloat(float(i))) {}
  constexpr operator float() const { return shim::widen_bfloat(bits); }
};

#define SHIM_ARITHMETIC(T, op)                                                     \
  constexpr T operator op(T a, T b) { return T(float(a) op float(b)); }            \
  constexpr float operator op(T a, float b) { return float(a) op b; }              \
  constexpr float operator op(float a, T b) { return a op float(b); }              \
  template <class I, shim::if_integral<I> = 0>                                     \
  constexpr T operator op(T a, I b) { return a op T(b); }                          \
  template <class I, shim::if_integral<I> = 0>                                     \
  constexpr T operator op(I a, T b) { return T(a) op b; }                          \
  inline T& operator op##=(T& a, T b) { return a = a op b; }
#define SHIM_COMPARE(T, op)                                                        \
  constexpr bool operator op(T a, T b) { return float(a) op float(b); }            \
  constexpr bool operator op(T a, float b) { return float(a) op b; }               \
  constexpr bool operator op(float a, T b) { return a op float(b); }               \
  template <class I, shim::if_integral<I> = 0>                                     \
  constexpr bool operator op(T a, I b) { return float(a) op float(b); }            \
  template <class I, shim::if_integral<I> = 0>                                     \
  constexpr bool operator op(I a, T b) { return float(a) op float(b); }
#define SHIM_SMALL_FLOAT(T)                                                        \
  SHIM_ARITHMETIC(T, +) SHIM_ARITHMETIC(T, -) SHIM_ARITHMETIC(T, *)                \
  SHIM_ARITHMETIC(T, /)                                                            \
  SHIM_COMPARE(T, ==) SHIM_COMPARE(T, !=) SHIM_COMPARE(T, <) SHIM_COMPARE(T, >)    \
  SHIM_COMPARE(T, <=) SHIM_COMPARE(T, >=)                                          \
  constexpr T operator-(T a) { return T(-float(a)); }
SHIM_SMALL_FLOAT(half)
SHIM_SMALL_FLOAT(bfloat)

namespace shim {
template <class T>
struct is_scalar : std::is_arithmetic<T> {};
template <>
struct is_scalar<half> : std::true_type {};
template <>
struct is_scalar<bfloat> : std::true_type {};
template <class T>
using if_scalar = std::enable_if_t<is_scalar<T>::value, int>;
}  // namespace shim

template <class To, class From>
inline To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the sizes differ");
  To to;
  memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof to);
  return to;
}

namespace metal {
using ::as_type;
using std::bool_constant;
using std::conditional;
using std::conditional_t;
using std::decay;
using std::decay_t;
using std::declval;
using std::enable_if;
using std::enable_if_t;
using std::false_type;
using std::integral_constant;
using std::is_arithmetic;
using std::is_convertible;
using std::is_convertible_v;
using std::is_integral;
using std::is_integral_v;
using std::is_same;
using std::is_same_v;
using std::is_signed;
using std::is_unsigned;
using std::is_void;
using std::remove_cv;
using std::remove_cv_t;
using std::remove_reference;
using std::true_type;

template <class T>
struct is_floating_point
    : bool_constant<std::is_floating_point<T>::value || is_same_v<T, half> ||
                    is_same_v<T, bfloat>> {};
template <class T>
constexpr bool is_floating_point_v = is_floating_point<T>::value;

template <class T>
using remove_addrspace_t = T;
template <class T>
using uniform = T;  // the same value in every thread: a hint to the compiler
template <class T>
inline T make_uniform(T value) {
  return value;
}

template <class T>
struct numeric_limits : std::numeric_limits<T> {};

#define SHIM_LIMITS(T, largest, smallest, gap)                                     \
  template <>                                                                      \
  struct numeric_limits<T> {                                                       \
    static constexpr T infinity() { return T(__builtin_inff()); }                  \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }               \
    static constexpr T max() { return T(largest); }                                \
    static constexpr T lowest() { return T(-largest); }                            \
    static constexpr T min() { return T(smallest); }                               \
    static constexpr T epsilon() { return T(gap); }                                \
  };
SHIM_LIMITS(half, 65504.0f, 6.103515625e-5f, 0.0009765625f)
SHIM_LIMITS(bfloat, 3.38953139e38f, 1.175494351e-38f, 0.0078125f)
}  // namespace metal
