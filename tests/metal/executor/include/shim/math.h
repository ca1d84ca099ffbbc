// Scalar and vector mathematics. bfloat overloads return bfloat, as MLX's preamble makes them.
// Uses the float functions of the C library: the last bit may differ from a GPU.
#pragma once

namespace metal {

#define SHIM_UNARY(name, expression)                                               \
  inline float name(float x) { return expression; }                                \
  inline half name(half h) {                                                       \
    const float x = h;                                                             \
    return half(float(expression));                                                \
  }                                                                                \
  inline bfloat name(bfloat b) {                                                   \
    const float x = b;                                                             \
    return bfloat(float(expression));                                              \
  }                                                                                \
  template <class T, int N>                                                        \
  inline vec<T, N> name(const vec<T, N>& v) {                                      \
    vec<T, N> r;                                                                   \
    for (int i = 0; i < N; ++i) r[i] = name(v[i]);                                 \
    return r;                                                                      \
  }
#define SHIM_BINARY(name, expression)                                              \
  inline float name(float a, float b) { return expression; }                       \
  inline half name(half ha, half hb) {                                             \
    const float a = ha, b = hb;                                                    \
    return half(float(expression));                                                \
  }                                                                                \
  inline bfloat name(bfloat ba, bfloat bb) {                                       \
    const float a = ba, b = bb;                                                    \
    return bfloat(float(expression));                                              \
  }
#define SHIM_MATH                                                                  \
  SHIM_UNARY(exp, __builtin_expf(x))                                               \
  SHIM_UNARY(exp2, __builtin_exp2f(x))                                             \
  SHIM_UNARY(exp10, __builtin_powf(10.0f, x))                                      \
  SHIM_UNARY(log, __builtin_logf(x))                                               \
  SHIM_UNARY(log2, __builtin_log2f(x))                                             \
  SHIM_UNARY(log10, __builtin_log10f(x))                                           \
  SHIM_UNARY(sqrt, __builtin_sqrtf(x))                                             \
  SHIM_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))                                     \
  SHIM_UNARY(sin, __builtin_sinf(x))                                               \
  SHIM_UNARY(cos, __builtin_cosf(x))                                               \
  SHIM_UNARY(tan, __builtin_tanf(x))                                               \
  SHIM_UNARY(asin, __builtin_asinf(x))                                             \
  SHIM_UNARY(acos, __builtin_acosf(x))                                             \
  SHIM_UNARY(atan, __builtin_atanf(x))                                             \
  SHIM_UNARY(sinh, __builtin_sinhf(x))                                             \
  SHIM_UNARY(cosh, __builtin_coshf(x))                                             \
  SHIM_UNARY(tanh, __builtin_tanhf(x))                                             \
  SHIM_UNARY(fabs, __builtin_fabsf(x))                                             \
  SHIM_UNARY(floor, __builtin_floorf(x))                                           \
  SHIM_UNARY(ceil, __builtin_ceilf(x))                                             \
  SHIM_UNARY(round, __builtin_roundf(x))                                           \
  SHIM_UNARY(rint, __builtin_rintf(x))                                             \
  SHIM_UNARY(trunc, __builtin_truncf(x))                                           \
  SHIM_UNARY(fract, x - __builtin_floorf(x))                                       \
  SHIM_UNARY(saturate, x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f)                    \
  SHIM_UNARY(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x)                         \
  SHIM_BINARY(pow, __builtin_powf(a, b))                                           \
  SHIM_BINARY(powr, __builtin_powf(a, b))                                          \
  SHIM_BINARY(fmod, __builtin_fmodf(a, b))                                         \
  SHIM_BINARY(atan2, __builtin_atan2f(a, b))                                       \
  SHIM_BINARY(copysign, __builtin_copysignf(a, b))                                 \
  SHIM_BINARY(divide, a / b)                                                       \
  SHIM_BINARY(fmin, __builtin_fminf(a, b))                                         \
  SHIM_BINARY(fmax, __builtin_fmaxf(a, b))

SHIM_MATH
SHIM_UNARY(abs, __builtin_fabsf(x))
namespace precise {
SHIM_MATH
}
namespace fast {
SHIM_MATH
}

inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline short abs(short x) { return short(x < 0 ? -x : x); }

#define SHIM_ORDERED(T)                                                            \
  inline T min(T a, T b) { return b < a ? b : a; }                                 \
  inline T max(T a, T b) { return a < b ? b : a; }                                 \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); }            \
  inline T select(T a, T b, bool c) { return c ? b : a; }
SHIM_ORDERED(int8_t) SHIM_ORDERED(uchar) SHIM_ORDERED(short) SHIM_ORDERED(ushort)
SHIM_ORDERED(int) SHIM_ORDERED(uint) SHIM_ORDERED(long) SHIM_ORDERED(ulong)

// For floats, min and max return the other operand when one is NaN.
#define SHIM_REAL(T)                                                               \
  inline T min(T a, T b) { return fmin(a, b); }                                    \
  inline T max(T a, T b) { return fmax(a, b); }                                    \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); }            \
  inline T select(T a, T b, bool c) { return c ? b : a; }                          \
  inline T mix(T a, T b, T t) { return T(a + (b - a) * t); }                       \
  inline T step(T edge, T x) { return x < edge ? T(0.0f) : T(1.0f); }              \
  inline T fma(T a, T b, T c) { return T(__builtin_fmaf(a, b, c)); }               \
  inline T mad(T a, T b, T c) { return fma(a, b, c); }                             \
  inline T ldexp(T x, int k) { return T(__builtin_ldexpf(x, k)); }                 \
  inline bool isnan(T a) { return __builtin_isnan(float(a)); }                     \
  inline bool isinf(T a) { return __builtin_isinf(float(a)); }                     \
  inline bool isfinite(T a) { return __builtin_isfinite(float(a)); }               \
  inline bool signbit(T a) { return __builtin_signbit(float(a)); }
SHIM_REAL(float) SHIM_REAL(half) SHIM_REAL(bfloat)

template <class T, int N>
inline vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = fma(a[i], b[i], c[i]);
  return r;
}
#define SHIM_VECTOR_BINARY(name)                                                   \
  template <class T, int N>                                                        \
  inline vec<T, N> name(const vec<T, N>& a, const vec<T, N>& b) {                  \
    vec<T, N> r;                                                                   \
    for (int i = 0; i < N; ++i) r[i] = name(a[i], b[i]);                           \
    return r;                                                                      \
  }                                                                                \
  template <class T, int N>                                                        \
  inline vec<T, N> name(const vec<T, N>& a, T b) {                                 \
    return name(a, vec<T, N>(b));                                                  \
  }
SHIM_VECTOR_BINARY(min) SHIM_VECTOR_BINARY(max) SHIM_VECTOR_BINARY(pow)
template <class T, int N>
inline vec<T, N> clamp(const vec<T, N>& x, T low, T high) {
  return min(max(x, low), high);
}
template <class T, int N>
inline vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = c[i] ? b[i] : a[i];
  return r;
}

inline int popcount(int x) { return __builtin_popcount(x); }
inline uint popcount(uint x) { return __builtin_popcount(x); }
inline ulong popcount(ulong x) { return __builtin_popcountl(x); }
inline int clz(int x) { return x ? __builtin_clz(x) : 32; }
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline int ctz(int x) { return x ? __builtin_ctz(x) : 32; }
inline uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
inline ulong ctz(ulong x) { return x ? __builtin_ctzl(x) : 64; }
inline uint mulhi(uint a, uint b) { return uint((uint64_t(a) * b) >> 32); }
inline uint rotate(uint x, uint n) { return (x << (n & 31)) | (x >> (-n & 31)); }
inline uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (~0u >> (32 - bits));
}
inline int extract_bits(int x, uint offset, uint bits) {
  return bits == 0 ? 0 : int(uint(x) << (32 - bits - offset)) >> (32 - bits);
}
inline uint reverse_bits(uint x) {
  uint r = 0;
  for (int i = 0; i < 32; ++i) r |= ((x >> i) & 1u) << (31 - i);
  return r;
}

}  // namespace metal
