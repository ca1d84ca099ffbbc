// An array stays in registers only if every index into it is a constant after unrolling.
#define UNROLL _Pragma("clang loop unroll(full)")
