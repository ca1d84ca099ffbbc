"""How the matrix kernels divide their work among threadgroups."""

from dataclasses import dataclass
from functools import cache
from typing import Final

# Threadgroups that occupy every chip up to M4 Max (40 cores) with more than one each.
ENOUGH_THREADGROUPS: Final = 64
# 256 threads: every pipeline limit reported for these chips allows them (384 is the lowest).
MAX_SLICES: Final = 8


@dataclass(frozen=True)
class MatrixGeometry:
    """A threadgroup computes 8 * `column_tiles` outputs; its `slices` simdgroups share K."""

    column_tiles: int
    slices: int


@cache
def matrix_geometries(rows: int, columns: int, parts: int) -> tuple[MatrixGeometry, ...]:
    """Return candidate geometries for M = `rows`, N = `columns` and K in `parts`, best guess first.

    The first has as many columns per threadgroup as registers hold results for, halved while
    there are too few threadgroups, and one simdgroup per part of K, at most 8. Then follow the
    other column counts, then fewer threads for pipelines with a lower limit.
    """
    widest = 4 if rows <= 16 else 2
    guess = widest
    while guess > 1 and columns < ENOUGH_THREADGROUPS * 8 * guess:
        guess //= 2
    slices = MAX_SLICES
    while slices > max(1, parts):
        slices //= 2
    widths = [guess, *(width for width in (4, 2, 1) if width != guess and width <= widest)]
    counts = [slices >> halvings for halvings in range(slices.bit_length())]
    return tuple(MatrixGeometry(width, count) for count in counts for width in widths)
