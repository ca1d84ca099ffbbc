"""Classes of threadgroups that do the same work, so that one of each class is counted."""

from __future__ import annotations

import itertools
from collections.abc import Collection

Triple = tuple[int, int, int]
FEW = 16


def edge_classes(groups: Triple, alike: Collection[int] = ()) -> list[tuple[Triple, int]]:
    """Return a position for every class of threadgroups and the size of the class.

    groups: threadgroups along x, y and z. alike: axes along which all do the same work. On other
    axes up to 16 threadgroups are a class each; of more, the first, the last and the inner ones are
    three classes. Tests compare this with full counts for every kernel.
    """
    axes = [[(0, n)] if axis in alike else _axis(n) for axis, n in enumerate(groups)]
    return [((x, y, z), nx * ny * nz) for (x, nx), (y, ny), (z, nz) in itertools.product(*axes)]


def _axis(n: int) -> list[tuple[int, int]]:
    if n <= FEW:
        return [(i, 1) for i in range(n)]
    return [(0, 1), (1, n - 2), (n - 1, 1)]
