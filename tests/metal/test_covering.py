"""The cases of kernel tests: few, but with every pair of values."""

from __future__ import annotations

import itertools

from tests.metal.covering import Axes, all_cases, all_pairs, batches, covering_cases

AXES = Axes(
    pipeline={"bits": (2, 4, 8), "group": (32, 64), "dtype": "ab"},
    shape={"rows": range(5), "order": "xyz"},
    extra={"slices": (1, 2, 8)},
)


def test_every_pair_of_values_is_covered() -> None:
    """Without a pair, an error at one bit width and one group size is not found."""
    cases = covering_cases(AXES)
    axes = {**AXES.pipeline, **AXES.shape, **AXES.extra}
    for a, b in itertools.combinations(axes, 2):
        seen = {(case[a], case[b]) for case in cases}
        assert seen == set(itertools.product(axes[a], axes[b])), (a, b)


def test_few_pipelines_are_compiled() -> None:
    """Compiling pipelines takes most of the time of a test run."""
    pipelines = all_pairs({**AXES.pipeline, **AXES.extra})
    assert 9 <= len(pipelines) <= 12


def test_the_full_run_is_the_product() -> None:
    """--full must run the product of all pipeline and shape values."""
    cases = all_cases(AXES)
    assert len(cases) == 3 * 2 * 2 * 5 * 3
    assert {case["slices"] for case in cases} == {1, 2, 8}


def test_batches_are_the_full_run_by_pipeline() -> None:
    """A batch with several pipelines does not show which of them fails."""
    made = batches(AXES)
    assert [case for batch in made for case in batch.cases] == all_cases(AXES)
    assert len(made) == 3 * 2 * 2
    for batch in made:
        assert len({(case["bits"], case["group"], case["dtype"]) for case in batch.cases}) == 1
