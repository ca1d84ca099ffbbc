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
# Threadgroups of one launch. 64 give each of the 40 cores of an M4 Max at least one; the other
# values are candidates for smaller chips and for an M3 Ultra with 80 cores.
THREADGROUPS: Final = (64, 128, 32)
# Key blocks per split. A shorter split spends more on its unfinished rows than on its keys.
MIN_BLOCKS: Final = 2


@dataclass(frozen=True)
class AttentionGeometry:
    """Rows per simdgroup (8 * `row_tiles`), simdgroups per threadgroup, and splits of the keys.

    `key_block` keys are staged in threadgroup memory at a time. The number of splits does not
    depend on the number of keys, so one geometry always launches the same pipelines.
    """

    simdgroups: int
    row_tiles: int
    key_block: int
    splits: int

    def row_blocks(self, rows: int) -> int:
        """Return how many threadgroups share the rows of a KV head: how often K and V are read."""
        return -(-rows // (8 * self.row_tiles * self.simdgroups))


@cache
def attention_geometries(
    head_size: int, dtype: mx.Dtype, rows: int, kv_heads: int, keys: int
) -> tuple[AttentionGeometry, ...]:
    """Return candidate geometries for `rows` query rows per KV head, best guess first.

    The first holds all rows in one threadgroup, so that each key is read once: two row tiles
    per simdgroup while their results fit in registers, otherwise up to 16 simdgroups. Its splits
    give 64 threadgroups, or fewer where `keys`, the smallest number of keys, is too small. The
    others split the keys differently, or use fewer threads for pipelines with a lower limit.
    """
    key_block = key_block_of(head_size, dtype)
    tiles = -(-rows // 8)
    row_tiles = 2 if head_size <= 128 and tiles > 8 else 1
    wanted = -(-tiles // row_tiles)
    limits = [8, 4, 2, 1] if head_size <= 128 else [16, 8, 4, 2, 1]
    most = max(1, keys // (MIN_BLOCKS * key_block))
    found = []
    for simdgroups in dict.fromkeys(min(wanted, limit) for limit in limits):
        blocks = kv_heads * -(-wanted // simdgroups)
        splits = (max(1, min(most, -(-target // blocks))) for target in THREADGROUPS)
        found += [
            AttentionGeometry(simdgroups, row_tiles, key_block, count)
            for count in dict.fromkeys(splits)
        ]
    return tuple(found)


def key_block_of(head_size: int, dtype: mx.Dtype) -> int:
    """Return the keys that are staged at a time: the most that `STAGE_BYTES` hold."""
    row_bytes = (head_size + ROW_PAD) * dtype.size
    return next(keys for keys in (32, 16, 8) if 2 * keys * row_bytes <= STAGE_BYTES)
