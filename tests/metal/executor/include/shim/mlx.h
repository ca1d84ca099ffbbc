// The preamble that mx.fast.metal_kernel adds to every kernel (MLX kernels/utils.h), as far as
// custom kernels use it. The original overloads constructors by address space, so it cannot be
// included.
#pragma once
using namespace metal;

typedef bfloat bfloat16_t;
typedef half float16_t;
inline uint16_t bfloat16_to_uint16(bfloat16_t x) { return as_type<uint16_t>(x); }
inline bfloat16_t uint16_to_bfloat16(uint16_t x) { return as_type<bfloat16_t>(x); }

#define MLX_MTL_PRAGMA_UNROLL
#define STEEL_CONST static constexpr const
#define STEEL_PRAGMA_UNROLL
#define STEEL_PRAGMA_NO_UNROLL

struct complex64_t {
  float real, imag;
  complex64_t() = default;
  constexpr complex64_t(float r, float i) : real(r), imag(i) {}
  template <class T>
  constexpr explicit complex64_t(T r) : real(float(r)), imag(0) {}
};

template <class U>
struct Limits {
  static constexpr U max = numeric_limits<U>::max();
  static constexpr U min = numeric_limits<U>::min();
  static constexpr U finite_max = max;
  static constexpr U finite_min = min;
};
#define SHIM_FLOAT_LIMITS(T)                                                       \
  template <>                                                                      \
  struct Limits<T> {                                                               \
    static constexpr T max = numeric_limits<T>::infinity();                        \
    static constexpr T min = -numeric_limits<T>::infinity();                       \
    static constexpr T finite_max = numeric_limits<T>::max();                      \
    static constexpr T finite_min = -numeric_limits<T>::max();                     \
  };
SHIM_FLOAT_LIMITS(float)
SHIM_FLOAT_LIMITS(half)
SHIM_FLOAT_LIMITS(bfloat)

template <class T, class U>
inline T ceildiv(T n, U m) {
  return (n + m - 1) / m;
}

// Offset of the element with row-major index `elem` in an array of this shape and strides.
template <class Index = int64_t>
inline Index elem_to_loc(Index elem, const int* shape, const int64_t* strides, int ndim) {
  Index offset = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    offset += (elem % shape[i]) * Index(strides[i]);
    elem /= shape[i];
  }
  return offset;
}
template <class Index = int64_t>
inline Index elem_to_loc(uint3 elem, const int* shape, const int64_t* strides, int ndim) {
  Index offset = elem.x * Index(strides[ndim - 1]) + elem.y * Index(strides[ndim - 2]);
  for (int d = ndim - 3; d >= 0; --d) {
    offset += (elem.z % shape[d]) * Index(strides[d]);
    elem.z /= shape[d];
  }
  return offset;
}

inline float log1p(float x) { return __builtin_log1pf(x); }
inline bfloat log1p(bfloat x) { return bfloat(__builtin_log1pf(x)); }

template <bool condition, class T, class U>
struct ConditionalType : std::conditional<condition, T, U> {};

template <class U, class T>
inline U cast_to(T value) {
  return static_cast<U>(value);
}

namespace metal {
template <class T>
struct is_empty : bool_constant<__is_empty(T)> {};
template <class T>
constexpr bool is_empty_v = is_empty<T>::value;
template <class T>
struct is_static : bool_constant<is_empty<remove_cv_t<T>>::value> {};
template <class... Ts>
using void_t = std::void_t<Ts...>;
template <class T>
struct pointer_element : std::remove_pointer<T> {};
template <class T>
using pointer_element_t = remove_cv_t<typename pointer_element<remove_cv_t<T>>::type>;
}  // namespace metal
