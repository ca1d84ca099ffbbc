// attention_merge: merges the splits of verify_attention or block_attention, in split order.
//
// parts  [SPLITS, HQ, M, D + 2]  float32: D unfinished sums, top score (base 2), weight sum
// out    [1, HQ, M, D]           O
//
// One simdgroup per query row; a lane computes the elements lane, lane + 32, ...
// Grid: (32, HQ * M, 1) threads in groups of (32, 1, 1).
// Template: O, D.
// Source: written for this project.

// body
const int rows = parts_shape[1] * parts_shape[2];
const int splits = parts_shape[0];
const int lane = int(thread_index_in_simdgroup);
const long row = long(threadgroup_position_in_grid.y);
const device float* part = parts + row * (D + 2);
const long step = long(rows) * (D + 2);

float top = part[D];
for (int split = 1; split < splits; ++split) {
  top = max(top, part[split * step + D]);
}
float total = 0.0f;
for (int split = 0; split < splits; ++split) {
  total += part[split * step + D + 1] * exp2(part[split * step + D] - top);
}
for (int d = lane; d < D; d += 32) {
  float sum = 0.0f;
  for (int split = 0; split < splits; ++split) {
    sum += part[split * step + d] * exp2(part[split * step + D] - top);
  }
  out[row * D + d] = O(sum / total);
}
