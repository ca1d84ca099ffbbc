"""From the matrices of a loaded model to settled choices, with the gate between them.

A contest is held at 4, 8, 16 and 32 rows; its answer holds for all numbers of rows down to the
contest before, because these launch the same number of row tiles.
"""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.build import Device
from dflash_mlx.metal.contests import matrix_contest
from dflash_mlx.metal.gate import BUDGET_S, Gate, Progress, Verdict, silent
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.layers import MatrixGroup

RACED_ROWS: Final = (4, 8, 16, 32)


def row_ranges(most_rows: int) -> list[range]:
    """The numbers of rows that each contest answers for, up to blocks of `most_rows`."""
    least, ranges = 2, []
    for rows in RACED_ROWS:
        if least <= most_rows:
            ranges.append(range(least, rows + 1))
        least = rows + 1
    return ranges


def choose_matrix_kernels(
    groups: Sequence[MatrixGroup],
    gate: Gate,
    dtype: mx.Dtype,
    most_rows: int,
    device: Device,
    *,
    race: bool,
    budget_s: float = BUDGET_S,
    progress: Progress = silent,
) -> list[Verdict[MatrixGeometry]]:
    """Settle the choices of `groups` for blocks of 2 to `most_rows` rows of `dtype`.

    Without `race` only stored answers count, and no device time is spent: this is for loading.
    With it, shapes that were never raced are, for at most `budget_s` seconds.
    """
    asked = [
        (group, rows, matrix_contest(group.weights, dtype, rows[-1], device))
        for group in groups
        for rows in row_ranges(most_rows)
    ]
    contests = [contest for _, _, contest in asked]
    if race:
        verdicts = gate.decide(contests, budget_s=budget_s, progress=progress)
    else:
        verdicts = [
            gate.recall(contest)
            or Verdict(contest.kernel, contest.shape, None, "not raced on this machine yet")
            for contest in contests
        ]
    for (group, rows, _), verdict in zip(asked, verdicts, strict=True):
        group.choices.settle(rows, verdict.geometry)
    return verdicts
