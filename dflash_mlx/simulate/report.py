"""Formats the outcomes of simulations: a text table, and plain values for JSON.

It must not know how they were computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dflash_mlx.simulate.run import SPAN, Outcome

MIN_SPEEDUP = 0.97
"""Goal in every scenario: the lowest speedup over any window of `SPAN` tokens."""

MIN_RELATIVE_TO_BEST = 0.95
"""Goal in every scenario: throughput relative to the best fixed block size in hindsight."""


@dataclass(frozen=True)
class SimulationSummary:
    """The worst of many outcomes, and how many miss each goal."""

    count: int
    below_plain: int
    below_best: int
    worst_speedup: float
    worst_relative_to_best: float
    mean_relative_to_best: float

    @property
    def reached(self) -> bool:
        """Whether every scenario reached both goals."""
        return not self.below_plain and not self.below_best


def summarise(outcomes: Sequence[Outcome]) -> SimulationSummary:
    """Return the summary of at least one outcome."""
    relative = [outcome.relative_to_best for outcome in outcomes]
    return SimulationSummary(
        count=len(outcomes),
        below_plain=sum(outcome.worst_speedup < MIN_SPEEDUP for outcome in outcomes),
        below_best=sum(ratio < MIN_RELATIVE_TO_BEST for ratio in relative),
        worst_speedup=min(outcome.worst_speedup for outcome in outcomes),
        worst_relative_to_best=min(relative),
        mean_relative_to_best=sum(relative) / len(outcomes),
    )


def closeness(outcome: Outcome) -> float:
    """Return the smaller ratio of an outcome to its goals: below 1 if one is missed."""
    return min(outcome.worst_speedup / MIN_SPEEDUP, outcome.relative_to_best / MIN_RELATIVE_TO_BEST)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of a table; "!" marks a missed goal."""
    width = max(len("scenario"), *(len(outcome.name) for outcome in outcomes))
    yield f"{'':{width}}  {'speedup':>17}  {'relative':>8}  {'best fixed block':>24}"
    yield (
        f"{'scenario':{width}}  worst {SPAN}   whole   to best   size  speedup  worst {SPAN}"
        "  tokens/round"
    )
    for outcome in outcomes:
        yield (
            f"{outcome.name:{width}}"
            f"  {outcome.worst_speedup:8.3f}{_mark(outcome.worst_speedup, MIN_SPEEDUP)}"
            f"  {outcome.speedup:5.2f}x"
            f"  {outcome.relative_to_best:7.3f}"
            f"{_mark(outcome.relative_to_best, MIN_RELATIVE_TO_BEST)}"
            f"  {outcome.best_block_size:5d}  {outcome.best_speedup:6.2f}x"
            f"  {outcome.best_worst_speedup:9.3f}  {outcome.tokens_per_round:12.2f}"
        )


def verdict(summary: SimulationSummary) -> str:
    """Return the summary in two sentences."""
    return (
        f"{summary.count} scenarios. Lowest speedup over any {SPAN} tokens: "
        f"{summary.worst_speedup:.3f} (goal {MIN_SPEEDUP}, missed by {summary.below_plain}). "
        f"Relative to the best fixed block size: at least {summary.worst_relative_to_best:.3f} "
        f"(goal {MIN_RELATIVE_TO_BEST}, missed by {summary.below_best}), "
        f"mean {summary.mean_relative_to_best:.3f}."
    )


def as_values(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return plain values, ready for JSON."""
    summary = summarise(outcomes)
    return {
        "summary": {**asdict(summary), "reached": summary.reached},
        "scenarios": [asdict(outcome) for outcome in outcomes],
    }


def _mark(value: float, goal: float) -> str:
    return " " if value >= goal else "!"
