// Atomics. One fiber runs at a time, so plain reads and writes are already indivisible.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;
using atomic_bool = atomic<bool>;

#define SHIM_NOT_TRACED __attribute__((no_sanitize("thread"), noinline))

namespace detail {
template <class T>
SHIM_NOT_TRACED inline T exchange(atomic<T>* p, T next) {
  const T old = p->value;
  p->value = next;
  return old;
}
template <class T>
SHIM_NOT_TRACED inline T peek(const atomic<T>* p) {
  return p->value;
}
template <class T>
inline void note(const atomic<T>* p, rt::AtomicUse use) {
  rt::counters.atomics++;
  rt::atomic_access(p, sizeof(T), use);
}
}  // namespace detail

#define SHIM_ATOMIC(name, expression)                                              \
  template <class T, class S>                                                      \
  inline T name(atomic<T>* p, S operand, memory_order) {                           \
    detail::note(p, rt::ATOMIC_UPDATE);                                            \
    const T x = T(operand), old = detail::peek(p);                                 \
    (void)x;                                                                       \
    return detail::exchange(p, T(expression));                                     \
  }
SHIM_ATOMIC(atomic_exchange_explicit, x)
SHIM_ATOMIC(atomic_fetch_add_explicit, old + x)
SHIM_ATOMIC(atomic_fetch_sub_explicit, old - x)
SHIM_ATOMIC(atomic_fetch_max_explicit, old < x ? x : old)
SHIM_ATOMIC(atomic_fetch_min_explicit, x < old ? x : old)
SHIM_ATOMIC(atomic_fetch_and_explicit, old & x)
SHIM_ATOMIC(atomic_fetch_or_explicit, old | x)
SHIM_ATOMIC(atomic_fetch_xor_explicit, old ^ x)

template <class T, class S>
inline void atomic_store_explicit(atomic<T>* p, S value, memory_order) {
  detail::note(p, rt::ATOMIC_STORE);
  detail::exchange(p, T(value));
}
template <class T>
inline T atomic_load_explicit(const atomic<T>* p, memory_order) {
  detail::note(p, rt::ATOMIC_LOAD);
  return detail::peek(p);
}
template <class T, class S>
inline bool atomic_compare_exchange_weak_explicit(atomic<T>* p, T* expected, S value, memory_order,
                                                  memory_order) {
  detail::note(p, rt::ATOMIC_UPDATE);
  const T old = detail::peek(p);
  if (old == *expected) {
    detail::exchange(p, T(value));
    return true;
  }
  *expected = old;
  return false;
}

}  // namespace metal
