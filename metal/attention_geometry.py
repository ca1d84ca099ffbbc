"""How the attention kernels divide rows and keys among threadgroups."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import mlx.core as mx

HEAD_SIZES: Final = (64, 80, 96, 128, 192, 256)
# One staged tile of keys and one of values. About half of the 32 KB that a threadgroup may
# have, so that two threadgroups fit on a core.
STAGE_BYTES: Final = 17 * 1024
ROW_PAD: Final = 8
# One KV head then fills several cores. The merge reads one unfinished row per split.
MAX_SPLITS: Final = 16
SHORTEST_SPLIT: Final = 256


@dataclass(frozen=True)
class AttentionGeometry:
    """Rows per simdgroup (8 * `row_tiles`), simdgroups per threadgroup, and keys per split.

    `key_block` keys are staged in threadgroup memory at a time.
    """

    simdgroups: int
    row_tiles: int
    key_block: int
    keys_per_split: int

    def row_blocks(self, rows: int) -> int:
        """Return how many threadgroups share the rows of a KV head: how often K and V are read."""
        return -(-rows // (8 * self.row_tiles * self.simdgroups))

    def splits(self, keys: int) -> int:
        """Return the number of parts into which `keys` keys are divided."""
        return max(1, min(MAX_SPLITS, keys // self.keys_per_split))


@cache
def attention_geometries(
    head_size: int, dtype: mx.Dtype, rows: int
) -> tuple[AttentionGeometry, ...]:
    """Return candidate geometries for `rows` query rows of one KV head, best guess first.

    The first holds all rows in one threadgroup, so that each key is read once: two row tiles
    per simdgroup while their results fit in registers, otherwise up to 16 simdgroups. The
    others split the keys differently, or use fewer threads for pipelines with a lower limit.
    """
    key_block = next(
        n for n in (32, 16, 8) if 2 * n * (head_size + ROW_PAD) * dtype.size <= STAGE_BYTES
    )
    tiles = -(-rows // 8)
    row_tiles = 2 if head_size <= 128 and tiles > 8 else 1
    wanted = -(-tiles // row_tiles)
    limits = [8, 4, 2, 1] if head_size <= 128 else [16, 8, 4, 2, 1]
    counts = dict.fromkeys(min(wanted, limit) for limit in limits)
    # An unfinished row is written and read in float32: 8 bytes per element for each of `rows`.
    # A 16-bit key and value take 4 bytes per element. With 8 keys per row, the unfinished
    # rows add at most a quarter of the traffic of the keys.
    keys = max(SHORTEST_SPLIT, 8 * rows)
    return tuple(
        AttentionGeometry(count, row_tiles, key_block, keys_per_split)
        for count in counts
        for keys_per_split in (keys, 2 * keys, keys // 2)
    )
