"""Chooses a block size from acceptance rates and costs: the best one for drafting or for a probe.

It must not know where the rates and costs come from.
"""

from collections.abc import Sequence

from dflash_mlx.controller.acceptance import AcceptanceEstimate, expected_tokens
from dflash_mlx.controller.costs import UNPIPELINED_COST

# Sensitivity: change of the mean ratio to the best fixed block size, in percent ± standard error,
# for half and for one and a half times the constant (docs/log.md, 2026-12-01).

MIN_SPEEDUP = 1.03
"""Speedup at which drafting counts as faster, and ratio at which another block size replaces the
current one. Estimates are not exact to 3%, so smaller differences only cause switching.
Sensitivity: -0.14 ± 0.11 and -0.11 ± 0.11. Without the second use: +0.58 ± 0.22 over
38 scenarios, but 1 of 223 misses the first goal (with 3 rounds of evidence after a change)."""

_OPTIMISTIC_RATES = (0.7, 0.85, 0.96)
"""First-position acceptance rates that a probe may assume, the lowest first. Sensitivity of the
first: -0.08 ± 0.12 and +0.02 ± 0.17. Sensitivity of the second: -0.05 ± 0.08 and -0.15 ± 0.10.
Sensitivity of the third: +0.03 ± 0.03 and +0.06 ± 0.05. With one rate, 0.85: +0.07 ± 0.22, but
0.961 instead of 0.970 as the lowest ratio."""

_MIN_PROBE_COST = 2 * (UNPIPELINED_COST - 1)
"""Plain steps that any probe costs at least: neither the step before it nor the one after it is
pipelined."""


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


def probe_cost(risk: float) -> float:
    """Return the plain steps that a probe may cost whose round may lose `risk` of them."""
    return max(risk, _MIN_PROBE_COST)


def probe_block_size(
    estimate: AcceptanceEstimate, costs: Sequence[float], threshold: float
) -> tuple[int, bool]:
    """Return the block size with the highest gain for its cost, and whether it could win.

    `costs` are in plain steps, for block sizes 1, 2, ...; a speedup above `threshold` wins. The
    first acceptance rate is the lowest optimistic one at which any block size wins, and the
    others follow from it as in earlier requests.
    """
    block_sizes = range(2, len(costs) + 1)
    for rate in _OPTIMISTIC_RATES:
        tokens = expected_tokens(estimate.rates_from(rate))
        speedups = {size: tokens[size - 1] / costs[size - 1] for size in block_sizes}
        value = {
            size: (speedup - 1) / probe_cost(costs[size - 1] - 1)
            for size, speedup in speedups.items()
            if speedup > threshold
        }
        if value:
            return max(value, key=value.__getitem__), True
    return max(block_sizes, key=speedups.__getitem__), False
