"""What a run of simulations says: a table for people, plain values for machines."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dflash_mlx.simulate.run import SPAN, Outcome

WORST_OF_PLAIN, OF_BEST = 0.97, 0.95
"""What the controller is meant to reach in every scenario."""


@dataclass(frozen=True)
class Summary:
    """The worst of many outcomes, and how many miss a goal."""

    count: int
    slower_than_plain: int
    behind_best: int
    worst_of_plain: float
    worst_of_best: float
    mean_of_best: float

    @property
    def reached(self) -> bool:
        """Whether every scenario reached both goals."""
        return not self.slower_than_plain and not self.behind_best


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Return the summary of at least one outcome."""
    return Summary(
        count=len(outcomes),
        slower_than_plain=sum(outcome.worst_of_plain < WORST_OF_PLAIN for outcome in outcomes),
        behind_best=sum(outcome.of_best < OF_BEST for outcome in outcomes),
        worst_of_plain=min(outcome.worst_of_plain for outcome in outcomes),
        worst_of_best=min(outcome.of_best for outcome in outcomes),
        mean_of_best=sum(outcome.of_best for outcome in outcomes) / len(outcomes),
    )


def closeness(outcome: Outcome) -> float:
    """Return how near an outcome is to its goals: below 1 where one is missed."""
    return min(outcome.worst_of_plain / WORST_OF_PLAIN, outcome.of_best / OF_BEST)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of a table, a mark behind each goal that is missed."""
    width = max(len("scenario"), *(len(outcome.name) for outcome in outcomes))
    yield (
        f"{'scenario':{width}}  worst {SPAN}   whole  of best   best: rows, speed, worst {SPAN}"
        "  tokens/round"
    )
    for outcome in outcomes:
        yield (
            f"{outcome.name:{width}}"
            f"  {outcome.worst_of_plain:8.3f}{_mark(outcome.worst_of_plain, WORST_OF_PLAIN)}"
            f"  {outcome.of_plain:5.2f}x"
            f"  {outcome.of_best:6.3f}{_mark(outcome.of_best, OF_BEST)}"
            f"  {outcome.best_rows:10d}  {outcome.best_of_plain:5.2f}x  {outcome.best_worst:9.3f}"
            f"  {outcome.tokens_per_round:12.2f}"
        )


def verdict(summary: Summary) -> str:
    """Return the summary in a sentence or two."""
    return (
        f"{summary.count} scenarios: over any {SPAN} tokens never below "
        f"{summary.worst_of_plain:.3f} of plain decoding (goal {WORST_OF_PLAIN}, missed by "
        f"{summary.slower_than_plain}); never below {summary.worst_of_best:.3f} of the best fixed "
        f"width (goal {OF_BEST}, missed by {summary.behind_best}), "
        f"{summary.mean_of_best:.3f} on average."
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
