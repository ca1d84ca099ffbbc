"""Chooses the block size with the highest expected throughput from acceptance rates and costs.

It must not know where the rates and costs come from.
"""

from collections.abc import Sequence

from dflash_mlx.controller.acceptance import expected_tokens

MIN_SPEEDUP = 1.03
"""Speedup at which drafting counts as faster, and ratio at which another block size replaces
the current one. Estimates are not exact to 3%, so smaller differences only cause switching."""


def best_block_size(
    rates: Sequence[float], costs: Sequence[float], current: int = 1
) -> tuple[int, float]:
    """Return the best block size above 1, and its expected speedup.

    `rates` are conditional acceptance rates; `costs` are in plain steps, for block sizes 1, 2,
    ... The `current` block size stays unless another is better by `MIN_SPEEDUP`.
    """
    tokens = expected_tokens(rates)
    speedups = [tokens[at] / costs[at] for at in range(1, len(costs))]
    best = max(range(len(speedups)), key=speedups.__getitem__)
    if 1 < current < len(speedups) + 2 and speedups[best] < speedups[current - 2] * MIN_SPEEDUP:
        best = current - 2
    return best + 2, speedups[best]
