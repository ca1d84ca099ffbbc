"""Which cases a kernel test runs: all pairs of values on each commit, or everything.

A case needs a compiled pipeline and a shape. Compiling takes most of the time, so pairs of
pipeline values are covered with few pipelines first, and cases then draw from these only.
`--full` runs the product of all pipeline and shape values; `extra` values, which only cut the
work differently, follow in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Sequence[Any]]
Case = dict[str, Any]
Value = tuple[str, int]  # an axis and the index of one of its values
Missing = dict[Value, set[Value]]  # the values that each value has not met


@dataclass(frozen=True)
class Axes:
    """What is varied: `pipeline` and `extra` change what is compiled, `shape` does not.

    `every`: each pipeline meets each shape value, for shape values that mean something only
    together with a pipeline's (a row of the third tile needs a pipeline with three tiles).
    """

    pipeline: Values
    shape: Values
    extra: Values = field(default_factory=dict)
    every: bool = False


def covering_cases(axes: Axes) -> list[Case]:
    """Cases with every pair of values of any two axes."""
    pipelines = all_pairs({**axes.pipeline, **axes.extra})
    if axes.every:
        cases = all_pairs({"pipeline": pipelines, **axes.shape})
        return [{**case.pop("pipeline"), **case} for case in cases]
    return all_pairs({**axes.pipeline, **axes.extra, **axes.shape}, pipelines)


def all_cases(axes: Axes) -> list[Case]:
    """The product of all pipeline and shape values."""
    extras = itertools.cycle(product(axes.extra))
    return [
        {**pipeline, **extra, **shape}
        for pipeline, extra in zip(product(axes.pipeline), extras, strict=False)
        for shape in product(axes.shape)
    ]


@dataclass(frozen=True)
class Batch:
    """Cases of one pipeline, run by one test: a test of its own for each would cost more."""

    cases: tuple[Case, ...]


def batches(axes: Axes) -> list[Batch]:
    """The product of all pipeline and shape values, a batch for each pipeline."""
    cases = all_cases(axes)
    size = len(product(axes.shape))
    return [Batch(tuple(cases[i : i + size])) for i in range(0, len(cases), size)]


def product(values: Values) -> list[Case]:
    """Every combination of the values."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def all_pairs(values: Values, bases: Sequence[Case] = ({},)) -> list[Case]:
    """Few cases, each with the values of one of `bases`, that hold every pair these allow.

    The axes that bases fix are the same in all of them. Greedy, always the same: a case takes
    the base and then, axis by axis, the value with most missing pairs.
    """
    if len(values) == 1:
        return product(values)
    indices = [{name: list(values[name]).index(base[name]) for name in base} for base in bases]
    fixed = list(indices[0])
    missing: Missing = {(name, i): set() for name in values for i in range(len(values[name]))}
    for a, b in itertools.combinations(missing, 2):
        if a[0] != b[0] and not (a[0] in fixed and b[0] in fixed):
            missing[a].add(b)
            missing[b].add(a)
    for base in indices:
        for a, b in itertools.permutations(base.items(), 2):
            missing[a].add(b)
    cases: list[Case] = []
    while any(missing.values()):
        filled = (_filled(base, values, missing, len(cases)) for base in indices)
        best = max(filled, key=lambda case: _gain(case, missing))
        for a, b in itertools.permutations(best.items(), 2):
            missing[a].discard(b)
        cases.append({name: values[name][best[name]] for name in values})
    return cases


def _filled(base: dict[str, int], values: Values, missing: Missing, turn: int) -> dict[str, int]:
    """`base` with a value for every other axis; among equals another one at each turn."""
    chosen = dict(base)
    free = [name for name in values if name not in base]
    if not base:
        # Nothing to add to yet: start with the value that has met fewest.
        free.sort(key=lambda name: -max(len(missing[name, k]) for k in range(len(values[name]))))
    for name in free:
        count = len(values[name])
        met = set(chosen.items())
        chosen[name] = max(
            ((turn + k) % count for k in range(count)),
            key=lambda k: (len(missing[name, k] & met), len(missing[name, k])),
        )
    return chosen


def _gain(case: dict[str, int], missing: Missing) -> int:
    """Missing pairs that `case` holds, each counted from both ends."""
    met = set(case.items())
    return sum(len(missing[value] & met) for value in met)
