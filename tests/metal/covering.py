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
Pair = tuple[str, int, str, int]


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
    compiled = {**axes.pipeline, **axes.extra}
    pipelines = all_pairs(compiled, product(compiled))
    if axes.every:
        values = {"pipeline": pipelines, **axes.shape}
        cases = all_pairs(values, [{"pipeline": pipeline} for pipeline in pipelines])
        return [{**case.pop("pipeline"), **case} for case in cases]
    return all_pairs({**compiled, **axes.shape}, pipelines)


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


def all_pairs(values: Values, bases: Sequence[Case]) -> list[Case]:
    """Few cases, each built on one of `bases`, that hold every pair the bases allow.

    A base fixes some of the axes; the others take any of their values. Greedy, always the
    same: each case takes the base and then the values that add most missing pairs.
    """
    names = list(values)
    fixed = [
        {name: list(values[name]).index(value) for name, value in base.items()} for base in bases
    ]
    free = [name for name in names if name not in fixed[0]]
    missing = {pair for base in fixed for pair in _pairs(names, base)}
    for a, b in itertools.combinations(names, 2):
        if a in free or b in free:
            n_a, n_b = len(values[a]), len(values[b])
            missing |= {(a, i, b, j) for i in range(n_a) for j in range(n_b)}
    cases: list[Case] = []
    while missing:
        best = max(
            (_filled(base, free, values, names, missing, len(cases)) for base in fixed),
            key=lambda chosen: len(_pairs(names, chosen) & missing),
        )
        missing -= _pairs(names, best)
        cases.append({name: values[name][best[name]] for name in names})
    return cases


def _filled(
    base: dict[str, int],
    free: Sequence[str],
    values: Values,
    names: Sequence[str],
    missing: set[Pair],
    turn: int,
) -> dict[str, int]:
    """`base` with a value for every free axis, each adding most missing pairs."""
    chosen = dict(base)
    for name in free:
        count = len(values[name])
        order = [(turn + k) % count for k in range(count)]
        gains = {k: len(_pairs_with(names, chosen, name, k) & missing) for k in order}
        # Pairs with axes still to be chosen, so that no value is left for the end.
        later = {k: sum((name, k) in ((p[0], p[1]), (p[2], p[3])) for p in missing) for k in order}
        chosen[name] = max(order, key=lambda k: (gains[k], later[k]))
    return chosen


def _pairs(names: Sequence[str], chosen: Mapping[str, int]) -> set[Pair]:
    ordered = [(name, chosen[name]) for name in names if name in chosen]
    return {(a, i, b, j) for (a, i), (b, j) in itertools.combinations(ordered, 2)}


def _pairs_with(
    names: Sequence[str], chosen: Mapping[str, int], name: str, index: int
) -> set[Pair]:
    """The pairs that a value of one more axis makes with the chosen ones."""
    at = names.index(name)
    return {
        (other, i, name, index) if names.index(other) < at else (name, index, other, i)
        for other, i in chosen.items()
    }
