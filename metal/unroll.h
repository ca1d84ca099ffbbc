// Arrays live in registers only while every index into them is a constant.
#define UNROLL _Pragma("clang loop unroll(full)")
