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
    """Simdgroups per threadgroup, rows per simdgroup (8 * `row_tiles`), and splits of the keys.

    With `halves` 2, two simdgroups share a row tile and each holds half of the elements of a head.

    `key_block` keys are staged in threadgroup memory at a time. The number of splits does not
    depend on the number of keys, so one geometry always launches the same pipelines.
    """

    simdgroups: int
    row_tiles: int
    key_block: int
    splits: int
    halves: int = 1

    def row_blocks(self, rows: int) -> int:
        """Return how many threadgroups share the rows of a KV head: how often K and V are read."""
        return -(-rows // (8 * self.row_tiles * (self.simdgroups // self.halves)))


@cache
def attention_geometries(
    head_size: int, dtype: mx.Dtype, rows: int, kv_heads: int, keys: int
) -> tuple[AttentionGeometry, ...]:
    """Return candidate geometries for `rows` query rows per KV head, best guess first.

    The first holds all rows in one threadgroup where registers allow, so that each key is read
    once, with two row tiles per simdgroup up to head size 128. Its splits give 64 threadgroups, or
    fewer where `keys`, the smallest number of keys, is too small. The others split the keys
    differently, or use fewer threads for pipelines with a lower limit.
    """
    key_block = key_block_of(head_size, dtype)
    tiles = -(-rows // 8)
    row_tiles = 2 if head_size <= 128 and tiles > 8 else 1
    wanted = -(-tiles // row_tiles)
    most = max(1, keys // (MIN_BLOCKS * key_block))
    found = []
    for layouts in _layouts(head_size, wanted):
        for target in THREADGROUPS:
            for simdgroups, halves in layouts:
                blocks = kv_heads * -(-wanted // (simdgroups // halves))
                splits = max(1, min(most, -(-target // blocks)))
                found.append(AttentionGeometry(simdgroups, row_tiles, key_block, splits, halves))
    return tuple(dict.fromkeys(found))


def _layouts(head_size: int, wanted: int) -> list[list[tuple[int, int]]]:
    """Return simdgroups per threadgroup and halves for `wanted` row tiles, most threads first.

    Above head size 128 a query and its output take 96 registers of a lane, so both layouts are
    candidates: halves, and whole rows with fewer simdgroups and barriers.
    """
    if head_size <= 128:
        return [[(_even(wanted, most), 1)] for most in (8, 4, 2, 1)]
    # 12 tiles in halves are 24 simdgroups, whose scores and staged keys take 29 of 32 KB
    return [
        [(2 * _even(wanted, halved), 2), (_even(wanted, whole), 1)]
        for halved, whole in ((12, 16), (8, 8), (4, 4), (2, 2), (1, 1))
    ]


def _even(tiles: int, most: int) -> int:
    """Return the tiles per threadgroup, at most `most`, with equal shares for all threadgroups."""
    return -(-tiles // -(-tiles // most))


def key_block_of(head_size: int, dtype: mx.Dtype) -> int:
    """Return the keys that are staged at a time: the most that `STAGE_BYTES` hold."""
    row_bytes = (head_size + ROW_PAD) * dtype.size
    return next(keys for keys in (32, 16, 8) if 2 * keys * row_bytes <= STAGE_BYTES)
