// grouped_conv: DFlash 2's grouped dynamic causal convolution over the rows of a block.
//
//   y[t, c] = sum over o < KERNEL_SIZE, o <= t of
//             (base[o, c] + change[t, o, c / GROUP]) * x[t - o, c]
//
// x       [B, C]                 T: float32, bfloat16 or float16
// base    [KERNEL_SIZE, C]       W: float32, bfloat16 or float16
// change  [B, KERNEL_SIZE, C / GROUP]  T
// y       [B, C]                 T, summed in float32
//
// One thread per channel computes all rows in order, so x is read once. Rows before row 0 are
// zero.
// Grid: (ceil(C / 256) * 256, 1, 1) threads in groups of (256, 1, 1).
// Template: T, W, KERNEL_SIZE, GROUP.
//
// Source: written for this project; DFlash 2 (Inco AI, 2026-08), in the dflash package 0.1.0.

#include "unroll.h"

// body
const int B = x_shape[0];
const int C = x_shape[1];
const int c = int(thread_position_in_grid.x);
if (c >= C) {
  return;
}
float fixed[KERNEL_SIZE];
float recent[KERNEL_SIZE];
UNROLL
for (int o = 0; o < KERNEL_SIZE; ++o) {
  fixed[o] = float(base[o * C + c]);
  recent[o] = 0.0f;
}
for (int t = 0; t < B; ++t) {
  UNROLL
  for (int o = KERNEL_SIZE - 1; o > 0; --o) {
    recent[o] = recent[o - 1];
  }
  recent[0] = float(x[t * C + c]);
  float sum = 0.0f;
  UNROLL
  for (int o = 0; o < KERNEL_SIZE; ++o) {
    const float coefficient =
        fixed[o] + float(change[(t * KERNEL_SIZE + o) * (C / GROUP) + c / GROUP]);
    sum += coefficient * recent[o];
  }
  y[t * C + c] = T(sum);
}
