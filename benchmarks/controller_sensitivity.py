"""Does a constant of the controller matter? Scales each by 0.5 and 1.5 in the simulator.

    nice -n 10 python benchmarks/controller_sensitivity.py --seeds 1 2 --file sensitivity.jsonl

Every constant is changed alone, and all variants run on the same scenarios with the same noise: the
scenarios of the package and 200 generated ones for each seed. The table has the mean change of the
throughput relative to the best fixed block size, with its standard error over scenarios, and the
scenarios that miss each goal. Constants near 1 (thresholds, probabilities) are scaled by their
distance to 1, forgetting factors by their memory in rounds. Each finished scenario is written to
--file, and a second call continues the file.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from types import ModuleType

import numpy as np

from dflash_mlx.controller import acceptance, adaptive, by_confidence, costs, probing, selection
from dflash_mlx.simulate.generate import generate
from dflash_mlx.simulate.report import MIN_RELATIVE_TO_BEST, MIN_SPEEDUP
from dflash_mlx.simulate.run import make_reference, run_auto
from dflash_mlx.simulate.scenario import Scenario, scenarios
from dflash_mlx.simulate.trace import make_trace

FACTORS = (0.5, 1.5)
COUNT = 200
"""Generated scenarios for each seed, as in `dflash-mlx simulate`."""


def scaled(value: float, factor: float) -> float:
    return value * factor


def whole(value: float, factor: float) -> float:
    return max(1, round(value * factor))


def from_one(value: float, factor: float) -> float:
    """Scale the distance to 1: 1.03 becomes 1.015 and 1.045."""
    return 1 + (value - 1) * factor


def memory(value: float, factor: float) -> float:
    """Scale the memory 1 / (1 - value) of a forgetting factor."""
    return 1 - (1 - value) / factor


@dataclass(frozen=True)
class Constant:
    """A constant of a module, or the entry `index` of a tuple of constants."""

    module: ModuleType
    name: str
    rule: Callable[[float, float], float] = scaled
    index: int | None = None

    @property
    def label(self) -> str:
        suffix = "" if self.index is None else f"[{self.index}]"
        return f"{self.module.__name__.split('.')[-1]}.{self.name.strip('_')}{suffix}"

    def changed(self, factor: float) -> object:
        """Return the value of the constant (the whole tuple) for a factor."""
        value = getattr(self.module, self.name)
        if self.index is None:
            return self.rule(value, factor)
        entries = list(value)
        entries[self.index] = self.rule(entries[self.index], factor)
        return tuple(entries)


CONSTANTS = (
    Constant(acceptance, "_ROUND_DISCOUNT", memory),
    Constant(acceptance, "_FIRST_RATE_STEP"),
    Constant(acceptance, "_PRIOR_ROUNDS"),
    Constant(acceptance, "_DEFAULT_RATE"),
    Constant(acceptance, "_REQUEST_DISCOUNT", memory),
    Constant(acceptance, "_HISTORY_ROUNDS"),
    Constant(adaptive, "_DRAFTING_BUDGET", index=0),
    Constant(adaptive, "_DRAFTING_BUDGET", index=1),
    Constant(adaptive, "_PROBING_BUDGET"),
    Constant(adaptive, "_CHANGE_BUDGET"),
    Constant(adaptive, "_FULL_BUDGET_GAIN"),
    Constant(adaptive, "_PROBING_RATE"),
    Constant(adaptive, "_PROBE_ROUNDS"),
    Constant(adaptive, "_DISABLE_ERRORS"),
    Constant(adaptive, "_FIRST_BLOCK_SIZE", whole),
    Constant(adaptive, "_BLOCK_SIZE_GROWTH", from_one),
    Constant(adaptive, "_MIN_OBSERVATIONS", whole),
    Constant(adaptive, "_CHECK_STEPS", whole),
    Constant(adaptive, "_CHECK_TOKENS"),
    Constant(adaptive, "_LOSING_STEPS"),
    Constant(adaptive, "_LOSING_CHECK_TOKENS", whole),
    Constant(by_confidence, "_CONFIDENCE_BOUNDS", from_one, 0),
    Constant(by_confidence, "_CONFIDENCE_BOUNDS", from_one, 1),
    Constant(by_confidence, "_PLAIN_STEP_DISCOUNT", memory),
    Constant(by_confidence, "_SHORTFALL_FRACTION"),
    Constant(by_confidence, "_SHORTFALL_ROUNDS"),
    Constant(by_confidence, "_CHANGE_ROUNDS"),
    Constant(by_confidence, "_FAST_STEP"),
    Constant(by_confidence, "_SLOW_STEP"),
    Constant(by_confidence, "_CHANGE_ERRORS"),
    Constant(costs, "_OBSERVATION_NOISE"),
    Constant(costs, "_MAX_INNOVATION"),
    Constant(costs, "_MACHINE_VARIANCE"),
    Constant(costs, "_PLAIN_VARIANCE"),
    Constant(costs, "_DRAFT_VARIANCE"),
    Constant(costs, "_BLOCK_SIZE_VARIANCE"),
    Constant(costs, "_CORRELATION_LENGTH"),
    Constant(costs, "_MACHINE_PROCESS_NOISE"),
    Constant(costs, "_BLOCK_SIZE_PROCESS_NOISE"),
    Constant(costs, "UNPIPELINED_COST", from_one),
    Constant(costs, "_CONTEXT_GRAIN", whole),
    Constant(costs, "_SHORT_CONTEXT", whole),
    Constant(costs, "_SIMILAR_CONTEXT", from_one),
    Constant(probing, "_SHORTEST_INTERVAL", whole),
    Constant(probing, "_INTERVAL_GROWTH", from_one),
    Constant(selection, "MIN_SPEEDUP", from_one),
    Constant(selection, "_OPTIMISTIC_RATES", from_one, 0),
    Constant(selection, "_OPTIMISTIC_RATES", from_one, 1),
    Constant(selection, "_OPTIMISTIC_RATES", from_one, 2),
)
"""The constants that are not derived from others. Guards against division by zero are left out."""


def variants() -> Iterator[tuple[str, ModuleType | None, str, object]]:
    """Yield the label, module, name and value of every change; the first changes nothing."""
    yield "as shipped", None, "", None
    for constant in CONSTANTS:
        for factor in FACTORS:
            name, value = constant.name, constant.changed(factor)
            yield f"{constant.label} x{factor}", constant.module, name, value


def measure(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """Return the worst speedup and the ratio to the best fixed block size, by variant."""
    trace = make_trace(scenario)
    reference = make_reference(scenario, trace)
    results = {}
    for label, module, name, value in variants():
        before = getattr(module, name) if module else None
        if module:
            setattr(module, name, value)
        try:
            outcome = run_auto(scenario, trace, reference)
        finally:
            if module:
                setattr(module, name, before)
        results[label] = (outcome.worst_speedup, outcome.relative_to_best)
    return results


def report(rows: list[dict[str, tuple[float, float]]]) -> None:
    """Print the table."""
    base = [row["as shipped"] for row in rows]
    print(f"{len(rows)} scenarios; change of the mean relative to best, and misses of both goals")
    print(f"{'as shipped':42} {mean(ratio for _, ratio in base):16.4f}  {misses(base)}")
    for label in list(rows[0])[1:]:
        results = [row[label] for row in rows]
        changes = [100 * (a[1] - b[1]) for a, b in zip(results, base, strict=True)]
        error = pstdev(changes) / len(changes) ** 0.5
        print(f"{label:42} {mean(changes):+7.2f} ± {error:.2f} %  {misses(results)}")


def misses(results: list[tuple[float, float]]) -> str:
    slow = sum(speedup < MIN_SPEEDUP for speedup, _ in results)
    low = sum(ratio < MIN_RELATIVE_TO_BEST for _, ratio in results)
    return f"misses {slow} and {low}, lowest speedup {min(speedup for speedup, _ in results):.3f}"


def main() -> None:
    """Measure all scenarios that --file does not have yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--file", type=Path, default=Path("sensitivity.jsonl"))
    parser.add_argument("--limit", type=int, help="stop after this many scenarios")
    options = parser.parse_args()
    lines = options.file.read_text().splitlines() if options.file.exists() else []
    rows = {row["scenario"]: row["results"] for row in map(json.loads, lines)}
    work = {scenario.name: scenario for scenario in scenarios()}
    for seed in options.seeds:
        work |= {f"seed {seed}: {each.name}": each for each in generate(COUNT, seed)}
    order = np.random.default_rng(0).permutation(sorted(work))  # a part is a fair sample
    with options.file.open("a") as file:
        for name in map(str, order[: options.limit]):
            if name not in rows:
                rows[name] = measure(work[name])
                print(json.dumps({"scenario": name, "results": rows[name]}), file=file, flush=True)
    report(list(rows.values()))


if __name__ == "__main__":
    main()
