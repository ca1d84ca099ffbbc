"""How the matrix kernels cut their work into threadgroups."""

from dataclasses import dataclass
from functools import cache
from typing import Final

# Fewer threadgroups than this leave cores of the smaller chips idle.
ENOUGH_THREADGROUPS: Final = 64
MAX_SLICES: Final = 8


@dataclass(frozen=True)
class MatrixGeometry:
    """A threadgroup owns `column_tiles` * 8 outputs; `slices` simdgroups share K."""

    column_tiles: int
    slices: int


@cache
def matrix_geometries(rows: int, columns: int, parts: int) -> tuple[MatrixGeometry, ...]:
    """Geometries worth trying for M, N and K in `parts`, best guess first.

    The guess: as many columns per threadgroup as registers hold results for, halved while
    there are too few threadgroups; as many simdgroups as K has parts, at most 8 (256
    threads). Then the other widths, then fewer threads for pipelines that refuse 256.
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
