"""Which cases a kernel test runs: all pairs of values on each commit, or everything.

A case needs a compiled pipeline and a shape. Compiling takes most of the time, so pairs of
pipeline values are covered with few pipelines, and then every pipeline meets every shape
value. `--full` runs the product of all pipeline and shape values; `extra` values, which only
cut the work differently, follow in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Sequence[Any]]
Case = dict[str, Any]


@dataclass(frozen=True)
class Axes:
    """What is varied: `pipeline` and `extra` change what is compiled, `shape` does not."""

    pipeline: Values
    shape: Values
    extra: Values = field(default_factory=dict)


def covering_cases(axes: Axes) -> list[Case]:
    """Cases with every pair of values of any two axes."""
    pipelines = all_pairs({**axes.pipeline, **axes.extra})
    indexed = all_pairs({"": range(len(pipelines)), **axes.shape})
    return [{**pipelines[case.pop("")], **case} for case in indexed]


def all_cases(axes: Axes) -> list[Case]:
    """The product of all pipeline and shape values."""
    extras = itertools.cycle(product(axes.extra))
    return [
        {**pipeline, **extra, **shape}
        for pipeline, extra in zip(product(axes.pipeline), extras, strict=False)
        for shape in product(axes.shape)
    ]


def product(values: Values) -> list[Case]:
    """Every combination of the values."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def all_pairs(values: Values) -> list[Case]:
    """Few cases that hold every pair of values of any two axes (greedy, always the same)."""
    names = list(values)
    missing = {
        (a, i, b, j): None
        for a, b in itertools.combinations(names, 2)
        for i in range(len(values[a]))
        for j in range(len(values[b]))
    }
    cases: list[Case] = []
    while missing:
        a, i, b, j = next(iter(missing))
        chosen = {a: i, b: j}
        for name in names:
            if name not in chosen:
                counts = [
                    sum(_pair(names, name, k, other, at) in missing for other, at in chosen.items())
                    for k in range(len(values[name]))
                ]
                # Among equals, turn to another value each time.
                turn = len(cases) % len(counts)
                order = [*range(turn, len(counts)), *range(turn)]
                chosen[name] = max(order, key=counts.__getitem__)
        for (a, i), (b, j) in itertools.combinations(chosen.items(), 2):
            missing.pop(_pair(names, a, i, b, j), None)
        cases.append({name: values[name][chosen[name]] for name in names})
    return cases


def _pair(names: list[str], a: str, i: int, b: str, j: int) -> tuple[str, int, str, int]:
    return (a, i, b, j) if names.index(a) < names.index(b) else (b, j, a, i)
