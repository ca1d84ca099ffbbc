"""How the attention kernels cut rows, keys and splits into threadgroups."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import mlx.core as mx

HEAD_SIZES: Final = (64, 80, 96, 128, 192, 256)
# A staged tile of keys and one of values; half of what a threadgroup may have, so that two
# fit on a core.
STAGE_BYTES: Final = 17 * 1024
ROW_PAD: Final = 8
# Enough for one KV head to fill several cores; what a merge has to read grows with them.
MAX_SPLITS: Final = 16
SHORTEST_SPLIT: Final = 256


@dataclass(frozen=True)
class AttentionGeometry:
    """A simdgroup owns `row_tiles` * 8 rows, a threadgroup `simdgroups` of them.

    `key_block` keys are staged at a time; a split takes about `keys_per_split` keys.
    """

    simdgroups: int
    row_tiles: int
    key_block: int
    keys_per_split: int

    def row_blocks(self, rows: int) -> int:
        """Threadgroups that share the rows of one KV head: how often K and V are read."""
        return -(-rows // (8 * self.row_tiles * self.simdgroups))

    def splits(self, keys: int) -> int:
        """Parts into which `keys` keys are cut."""
        return max(1, min(MAX_SPLITS, keys // self.keys_per_split))


@cache
def attention_geometries(
    head_size: int, dtype: mx.Dtype, rows: int
) -> tuple[AttentionGeometry, ...]:
    """Geometries worth trying for `rows` query rows of one KV head, best guess first.

    The guess holds all rows in one threadgroup, so that keys are read once: two row tiles
    per simdgroup while their results fit into registers, else up to 16 simdgroups. The rest
    split the keys differently, then take fewer threads for pipelines that refuse so many.
    """
    key_block = next(
        n for n in (32, 16, 8) if 2 * n * (head_size + ROW_PAD) * dtype.size <= STAGE_BYTES
    )
    tiles = -(-rows // 8)
    row_tiles = 2 if head_size <= 128 and tiles > 8 else 1
    wanted = -(-tiles // row_tiles)
    caps = [8, 4, 2, 1] if head_size <= 128 else [16, 8, 4, 2, 1]
    counts = dict.fromkeys(min(wanted, cap) for cap in caps)
    # An unfinished row is written and read in float32: 8 bytes per element for each of `rows`,
    # beside 4 bytes per element for each key and value. So they add a quarter at most.
    keys = max(SHORTEST_SPLIT, 8 * rows)
    return tuple(
        AttentionGeometry(count, row_tiles, key_block, keys_per_split)
        for count in counts
        for keys_per_split in (keys, 2 * keys, keys // 2)
    )
