// Callbacks of traced kernels. These are compiled with -fsanitize=thread and -fsanitize=bounds,...;
// the functions that the compiler inserts are defined here, because the runtimes of the sanitizers
// check real threads and not fibers.
#include <cstring>

#include "launch.h"

#define CALLER __builtin_return_address(0)
#define WATCH_AS(kind, n)                                                           \
  void __tsan_##kind##read##n(void* p) { rt::plain_access(p, n, false, CALLER); }   \
  void __tsan_##kind##write##n(void* p) { rt::plain_access(p, n, true, CALLER); }   \
  void __tsan_##kind##read_write##n(void* p) {                                      \
    rt::plain_access(p, n, false, CALLER);                                          \
    rt::plain_access(p, n, true, CALLER);                                           \
  }
#define WATCH(n) WATCH_AS(, n) WATCH_AS(unaligned_, n) WATCH_AS(volatile_, n)

namespace {
// The first fields of a record of the undefined-behaviour sanitizer: the source location.
struct Source {
  const char* file;
  uint32_t line, column;
};
void undefined(rt::Kind kind, const char* what, const void* record) {
  const Source& source = *static_cast<const Source*>(record);
  const bool in_kernel = strstr(source.file, ".metal") != nullptr;
  if (rt::lane) rt::report(kind, what, 0, in_kernel ? int(source.line) : 0, 0, 0);
}
}  // namespace

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
WATCH(1) WATCH(2) WATCH(4) WATCH(8) WATCH(16)
void __tsan_read_range(void* p, unsigned long n) { rt::plain_access(p, n, false, CALLER); }
void __tsan_write_range(void* p, unsigned long n) { rt::plain_access(p, n, true, CALLER); }

// Kernels are linked with --wrap, so that block copies of the compiler are checked too.
void* __wrap_memcpy(void* to, const void* from, unsigned long n) {
  rt::plain_access(from, n, false, CALLER);
  rt::plain_access(to, n, true, CALLER);
  return memcpy(to, from, n);
}
void* __wrap_memmove(void* to, const void* from, unsigned long n) {
  rt::plain_access(from, n, false, CALLER);
  rt::plain_access(to, n, true, CALLER);
  return memmove(to, from, n);
}
void* __wrap_memset(void* to, int value, unsigned long n) {
  rt::plain_access(to, n, true, CALLER);
  return memset(to, value, n);
}

#define UNDEFINED(name, kind, what) \
  void __ubsan_handle_##name(void* record, ...) { undefined(rt::kind, what, record); }
UNDEFINED(out_of_bounds, LOCAL_BOUNDS, "array index")
UNDEFINED(shift_out_of_bounds, BAD_SHIFT, "shift by the width or more")
UNDEFINED(add_overflow, INTEGER_OVERFLOW, "signed addition")
UNDEFINED(sub_overflow, INTEGER_OVERFLOW, "signed subtraction")
UNDEFINED(mul_overflow, INTEGER_OVERFLOW, "signed multiplication")
UNDEFINED(negate_overflow, INTEGER_OVERFLOW, "negation")
UNDEFINED(divrem_overflow, INTEGER_OVERFLOW, "division")
UNDEFINED(type_mismatch_v1, MISALIGNED, "vector or wider type")
}
