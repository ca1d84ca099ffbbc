// vec<T, N>: component names, the .xy, .zw and .xyz swizzles, element-wise operators.
#pragma once

namespace metal {

template <class T, int N>
struct vec;

#define SHIM_VECTOR_BODY(T, N)                                                     \
  using value_type = T;                                                            \
  vec() = default;                                                                 \
  vec(const vec&) = default;                                                       \
  vec& operator=(const vec&) = default;                                            \
  template <class S, shim::if_scalar<S> = 0>                                       \
  vec(S s) {                                                                       \
    for (int i = 0; i < N; ++i) e[i] = T(s);                                       \
  }                                                                                \
  template <class U, std::enable_if_t<!std::is_same<U, T>::value, int> = 0>        \
  explicit vec(const vec<U, N>& other) {                                           \
    for (int i = 0; i < N; ++i) e[i] = T(other[i]);                                \
  }                                                                                \
  template <class A, class B, class... Rest>                                       \
  vec(const A& a, const B& b, const Rest&... rest) {                               \
    int k = 0;                                                                     \
    put(k, a), put(k, b), (put(k, rest), ...);                                     \
  }                                                                                \
  template <class S, shim::if_scalar<S> = 0>                                       \
  void put(int& k, S s) {                                                          \
    e[k++] = T(s);                                                                 \
  }                                                                                \
  template <class U, int M>                                                        \
  void put(int& k, const vec<U, M>& part) {                                        \
    for (int i = 0; i < M; ++i) e[k++] = T(part[i]);                               \
  }                                                                                \
  T& operator[](size_t i) { return e[i]; }                                         \
  const T& operator[](size_t i) const { return e[i]; }

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T e[2];
    struct { T x, y; };
    struct { T r, g; };
  };
  SHIM_VECTOR_BODY(T, 2)
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {  // as wide as vec<T, 4>, as in Metal
  union {
    T e[4];
    struct { T x, y, z; };
    struct { T r, g, b; };
    vec<T, 2> xy;
  };
  SHIM_VECTOR_BODY(T, 3)
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T e[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    struct { vec<T, 2> xy, zw; };
    vec<T, 3> xyz;
  };
  SHIM_VECTOR_BODY(T, 4)
};

#define SHIM_VECTOR_OPERATOR(op)                                                   \
  template <class T, int N>                                                        \
  inline vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {           \
    vec<T, N> r;                                                                   \
    for (int i = 0; i < N; ++i) r[i] = T(a[i] op b[i]);                            \
    return r;                                                                      \
  }                                                                                \
  template <class T, int N, class S, shim::if_scalar<S> = 0>                       \
  inline vec<T, N> operator op(const vec<T, N>& a, S s) {                          \
    return a op vec<T, N>(s);                                                      \
  }                                                                                \
  template <class T, int N, class S, shim::if_scalar<S> = 0>                       \
  inline vec<T, N> operator op(S s, const vec<T, N>& a) {                          \
    return vec<T, N>(s) op a;                                                      \
  }                                                                                \
  template <class T, int N, class B>                                               \
  inline vec<T, N>& operator op##=(vec<T, N>& a, const B& b) {                     \
    return a = a op b;                                                             \
  }
SHIM_VECTOR_OPERATOR(+) SHIM_VECTOR_OPERATOR(-) SHIM_VECTOR_OPERATOR(*) SHIM_VECTOR_OPERATOR(/)
SHIM_VECTOR_OPERATOR(%) SHIM_VECTOR_OPERATOR(&) SHIM_VECTOR_OPERATOR(|) SHIM_VECTOR_OPERATOR(^)
SHIM_VECTOR_OPERATOR(<<) SHIM_VECTOR_OPERATOR(>>)

#define SHIM_VECTOR_COMPARE(op)                                                    \
  template <class T, int N>                                                        \
  inline vec<bool, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {        \
    vec<bool, N> r;                                                                \
    for (int i = 0; i < N; ++i) r[i] = a[i] op b[i];                               \
    return r;                                                                      \
  }                                                                                \
  template <class T, int N, class S, shim::if_scalar<S> = 0>                       \
  inline vec<bool, N> operator op(const vec<T, N>& a, S s) {                       \
    return a op vec<T, N>(s);                                                      \
  }
SHIM_VECTOR_COMPARE(==) SHIM_VECTOR_COMPARE(!=) SHIM_VECTOR_COMPARE(<) SHIM_VECTOR_COMPARE(>)
SHIM_VECTOR_COMPARE(<=) SHIM_VECTOR_COMPARE(>=)

template <class T, int N>
inline vec<T, N> operator-(const vec<T, N>& a) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = T(-a[i]);
  return r;
}
template <class T, int N>
inline vec<T, N> operator~(const vec<T, N>& a) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = T(~a[i]);
  return r;
}
template <int N>
inline bool all(const vec<bool, N>& a) {
  for (int i = 0; i < N; ++i)
    if (!a[i]) return false;
  return true;
}
template <int N>
inline bool any(const vec<bool, N>& a) {
  for (int i = 0; i < N; ++i)
    if (a[i]) return true;
  return false;
}
template <class T, int N>
inline T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = T(a[0] * b[0]);
  for (int i = 1; i < N; ++i) sum = T(sum + a[i] * b[i]);
  return sum;
}

template <class T, size_t N>
struct array {
  T e[N];
  T& operator[](size_t i) { return e[i]; }
  const T& operator[](size_t i) const { return e[i]; }
};

}  // namespace metal

using metal::vec;

template <class T, int N>
struct packed_vec {  // no padding, alignment of one element
  T e[N];
  packed_vec() = default;
  packed_vec(const vec<T, N>& v) {
    for (int i = 0; i < N; ++i) e[i] = v[i];
  }
  operator vec<T, N>() const {
    vec<T, N> v;
    for (int i = 0; i < N; ++i) v[i] = e[i];
    return v;
  }
  T& operator[](size_t i) { return e[i]; }
  const T& operator[](size_t i) const { return e[i]; }
};

#define SHIM_VECTOR_NAMES(name, T)                                                 \
  using name##2 = vec<T, 2>;                                                       \
  using name##3 = vec<T, 3>;                                                       \
  using name##4 = vec<T, 4>;                                                       \
  using packed_##name##2 = packed_vec<T, 2>;                                       \
  using packed_##name##3 = packed_vec<T, 3>;                                       \
  using packed_##name##4 = packed_vec<T, 4>;
SHIM_VECTOR_NAMES(float, float) SHIM_VECTOR_NAMES(half, half) SHIM_VECTOR_NAMES(bfloat, bfloat)
SHIM_VECTOR_NAMES(char, int8_t) SHIM_VECTOR_NAMES(uchar, uchar) SHIM_VECTOR_NAMES(short, short)
SHIM_VECTOR_NAMES(ushort, ushort) SHIM_VECTOR_NAMES(int, int) SHIM_VECTOR_NAMES(uint, uint)
SHIM_VECTOR_NAMES(long, long) SHIM_VECTOR_NAMES(ulong, ulong) SHIM_VECTOR_NAMES(bool, bool)
