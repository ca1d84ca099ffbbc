"""Mutated files end in a result or in one line: no traceback, hang, full memory or wrong data."""

import sys

import pytest

from tests.fuzz.harness import entry_points, fuzz, table


def test_mutated_files_end_in_a_result_or_one_line(request: pytest.FixtureRequest) -> None:
    """Damaged and hostile files gave tracebacks, hangs, gigabytes, and text of other models."""
    minutes = request.config.getoption("--fuzz-minutes", default=None)
    seed = request.config.getoption("--fuzz-seed", default=None) or 1
    entries = entry_points()
    quick = None if minutes else {name: entry.quick_cases for name, entry in entries.items()}
    outcomes, faults = fuzz(seed, quick, minutes or 0)
    sys.stderr.write(f"\n{table(outcomes)}\n")
    assert [(fault.entry, fault.case, fault.outcome) for fault in faults] == []
    if quick:
        assert {name: counts.total() for name, counts in outcomes.items()} == quick
