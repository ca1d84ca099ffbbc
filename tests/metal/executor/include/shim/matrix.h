// simdgroup_matrix: an 8x8 matrix spread over 32 lanes, two adjacent elements per lane.
// The layout is the one that kernels with thread_elements rely on (MLX steel, mlx-lm).
#pragma once

namespace metal {

namespace tile {
inline int row(int lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
inline int column(int lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }

struct Operands {
  float a[2], b[2], c[2];
};

// Products are summed in float, first to last, then added to C. The order of a GPU is unknown.
inline void multiply(rt::Group& group, uint32_t lanes) {
  float a[8][8], b[8][8];
  for (int i = 0; i < 32; ++i) {
    if (!meeting::came(lanes, uint32_t(i))) continue;
    const Operands& o = meeting::in<Operands>(group, uint32_t(i));
    for (int k = 0; k < 2; ++k) {
      a[row(i)][column(i) + k] = o.a[k];
      b[row(i)][column(i) + k] = o.b[k];
    }
  }
  float product[8][8] = {};
  for (int i = 0; i < 8; ++i)
    for (int k = 0; k < 8; ++k)
      for (int j = 0; j < 8; ++j) product[i][j] += a[i][k] * b[k][j];
  for (int i = 0; i < 32; ++i) {
    if (!meeting::came(lanes, uint32_t(i))) continue;
    const Operands& o = meeting::in<Operands>(group, uint32_t(i));
    float* result = &meeting::out<float>(group, uint32_t(i));
    for (int k = 0; k < 2; ++k) result[k] = o.c[k] + product[row(i)][column(i) + k];
  }
  rt::counters.multiplies++;
  rt::counters.simd_ops--;  // counted as a multiply instead
}
}  // namespace tile

template <class T, int Rows = 8, int Columns = 8>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "Metal has 8x8 simdgroup matrices only");
  using storage_type = vec<T, 2>;
  storage_type elements;
  simdgroup_matrix() = default;
  template <class S, shim::if_scalar<S> = 0>
  explicit simdgroup_matrix(S diagonal) {
    const int r = tile::row(int(rt::lane->lane)), c = tile::column(int(rt::lane->lane));
    elements[0] = r == c ? T(diagonal) : T(0);
    elements[1] = r == c + 1 ? T(diagonal) : T(0);
  }
  storage_type& thread_elements() { return elements; }
  const storage_type& thread_elements() const { return elements; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int R, int C, class S>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(S value) {
  simdgroup_matrix<T, R, C> m;
  m.elements[0] = m.elements[1] = T(value);
  return m;
}

namespace tile {
template <class P>
using element = std::remove_cv_t<std::remove_pointer_t<P>>;
// Where this lane's element k (0 or 1) lies from the matrix's first element.
inline long offset(int k, long stride, ulong2 origin, bool transposed) {
  const int r = row(int(rt::lane->lane)), c = column(int(rt::lane->lane)) + k;
  const long start = long(origin.y) * stride + long(origin.x);
  return start + (transposed ? c * stride + r : r * stride + c);
}
inline void count_load() { if (rt::lane->lane == 0) rt::counters.matrix_loads++; }
inline void count_store() { if (rt::lane->lane == 0) rt::counters.matrix_stores++; }
}  // namespace tile

template <class T, class P>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, P from, ulong stride = 8,
                           ulong2 origin = ulong2(0, 0), bool transposed = false) {
  static_assert(std::is_same<tile::element<P>, T>::value, "simdgroup_load: element types differ");
  tile::count_load();
  for (int k = 0; k < 2; ++k)
    m.elements[k] = from[tile::offset(k, long(stride), origin, transposed)];
}
template <class T, class P>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, P to, ulong stride = 8,
                            ulong2 origin = ulong2(0, 0), bool transposed = false) {
  static_assert(std::is_same<tile::element<P>, T>::value, "simdgroup_store: element types differ");
  tile::count_store();
  for (int k = 0; k < 2; ++k)
    to[tile::offset(k, long(stride), origin, transposed)] = m.elements[k];
}

template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                          const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b,
                                          const simdgroup_matrix<C, 8, 8>& c, SHIM_LINE) {
  tile::Operands o;
  for (int k = 0; k < 2; ++k) {
    o.a[k] = float(a.elements[k]);
    o.b[k] = float(b.elements[k]);
    o.c[k] = float(c.elements[k]);
  }
  const float2 result = meeting::call<float2>(o, &tile::multiply, line);
  for (int k = 0; k < 2; ++k) d.elements[k] = D(result[k]);
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b, SHIM_LINE) {
  simdgroup_matrix<D, 8, 8> zero;
  zero.elements[0] = zero.elements[1] = D(0);
  simdgroup_multiply_accumulate(d, a, b, zero, line);
}

}  // namespace metal
