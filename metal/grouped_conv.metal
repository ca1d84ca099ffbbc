// grouped_conv: DFlash 2's grouped dynamic causal convolution over the rows of a block.
//
//   y[t, c] = sum over o < TAPS, o <= t of (base[o, c] + change[t, o, c / GROUP]) * x[t - o, c]
//
// x       [B, C]                 T: float32, bfloat16 or float16
// base    [TAPS, C]              W: float32, bfloat16 or float16
// change  [B, TAPS, C / GROUP]   T
// y       [B, C]                 T, summed in float32
//
// One thread per channel walks all rows, so x is read once; there is nothing before row 0.
// Grid: (ceil(C / 256) * 256, 1, 1) threads in groups of (256, 1, 1).
// Template: T, W, TAPS, GROUP.
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
float taps[TAPS];
float behind[TAPS];
UNROLL
for (int o = 0; o < TAPS; ++o) {
  taps[o] = float(base[o * C + c]);
  behind[o] = 0.0f;
}
for (int t = 0; t < B; ++t) {
  UNROLL
  for (int o = TAPS - 1; o > 0; --o) {
    behind[o] = behind[o - 1];
  }
  behind[0] = float(x[t * C + c]);
  float sum = 0.0f;
  UNROLL
  for (int o = 0; o < TAPS; ++o) {
    const float coefficient = taps[o] + float(change[(t * TAPS + o) * (C / GROUP) + c / GROUP]);
    sum += coefficient * behind[o];
  }
  y[t * C + c] = T(sum);
}
