"""Selects the cases of a kernel test: all pairs of values, or the product with `--full`.

Compiling takes most of the time, so pairs of pipeline values are first covered with few
pipelines, and all cases use these pipelines.
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
    """The values to combine: `pipeline` and `extra` change the compiled code, `shape` does not.

    `every` combines each pipeline with each shape value, for shape values that depend on the
    pipeline (a row of the third tile needs a pipeline with three tiles). The full product leaves
    out the combinations of `extra` values, which only divide the work differently.
    """

    pipeline: Values
    shape: Values
    extra: Values = field(default_factory=dict)
    every: bool = False


def covering_cases(axes: Axes) -> list[Case]:
    """Return cases with every pair of values of any two axes."""
    pipelines = all_pairs({**axes.pipeline, **axes.extra})
    if axes.every:
        cases = all_pairs({"pipeline": pipelines, **axes.shape})
        return [{**case.pop("pipeline"), **case} for case in cases]
    return all_pairs({**axes.pipeline, **axes.extra, **axes.shape}, pipelines)


def all_cases(axes: Axes) -> list[Case]:
    """Return the product of all pipeline and shape values."""
    extras = itertools.cycle(product(axes.extra))
    return [
        {**pipeline, **extra, **shape}
        for pipeline, extra in zip(product(axes.pipeline), extras, strict=False)
        for shape in product(axes.shape)
    ]


@dataclass(frozen=True)
class Batch:
    """Cases of one pipeline in one test, which takes less time than one test per case."""

    cases: tuple[Case, ...]


def batches(axes: Axes) -> list[Batch]:
    """Return the product of all pipeline and shape values, one batch per pipeline."""
    cases = all_cases(axes)
    size = len(product(axes.shape))
    return [Batch(tuple(cases[i : i + size])) for i in range(0, len(cases), size)]


def product(values: Values) -> list[Case]:
    """Return every combination of the values."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def all_pairs(values: Values, bases: Sequence[Case] = ({},)) -> list[Case]:
    """Return few cases with every pair of values; each case extends one of `bases`.

    All bases fix the same axes. Greedy and deterministic: a case takes a base and then, axis by
    axis, the value with the most missing pairs.
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
    """Return `base` with a value for every other axis; ties are broken by `turn`."""
    chosen = dict(base)
    free = [name for name in values if name not in base]
    if not base:
        # Without a base, start with the axis whose values have the most missing pairs.
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
    """Return the number of missing pairs in `case`, each counted twice."""
    met = set(case.items())
    return sum(len(missing[value] & met) for value in met)
