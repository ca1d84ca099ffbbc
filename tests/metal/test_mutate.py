"""Mutation tests; the score is printed with `-rP` and by `python -m tests.metal.mutate`."""

from __future__ import annotations

import sys

import pytest

from dflash_mlx.metal.build import Kernel
from tests.metal.faults import Fault, StaleFault, read_faults
from tests.metal.kernel_cases import kernel_tests, shipped_kernels
from tests.metal.mutate import WANTED, describe, judge, judge_all, score, summary

pytestmark = pytest.mark.usefixtures("objects")


def test_a_fault_is_caught() -> None:
    """A mutation test that changes nothing reports every fault as survived."""
    result = judge(Fault("dense_verify", "zero", "T(slice_sum", "T(0.0f * slice_sum"))
    assert result.caught == "wrong result"


def test_a_harmless_change_survives() -> None:
    """A change without effect must not count as detected."""
    result = judge(Fault("dense_verify", "same", "m < M && n < N", "n < N && m < M"))
    assert (result.caught, result.stale) == (None, None)


def test_a_fault_whose_text_is_gone_is_stale() -> None:
    """A fault whose text was rewritten must not count as detected."""
    result = judge(Fault("dense_verify", "old", "no such text", ""))
    assert result.caught is None
    assert result.stale


def test_a_fault_must_fit_once() -> None:
    """A fault must change exactly one place."""
    kernel = Kernel("k", ("x",), ("y",), "a b", "a")
    assert Fault("k", "one", "b", "c").plant(kernel) == Kernel(
        "k_fault", ("x",), ("y",), "a c", "a"
    )
    assert Fault("k", "none", "z", "").plant(kernel) is None
    with pytest.raises(StaleFault, match="2 times"):
        Fault("k", "two", "a", "").plant(kernel)


@pytest.mark.parametrize("fault", read_faults(), ids=lambda fault: fault.id)
def test_every_fault_fits_the_shipped_text(fault: Fault) -> None:
    """An edited kernel must not leave faults whose text no longer exists."""
    texts = (kernel.header + kernel.body for kernel in shipped_kernels().values())
    assert 1 in {text.count(fault.old) for text in texts}


@pytest.mark.parametrize("fault", read_faults(), ids=lambda fault: fault.id)
def test_the_test_of_every_fault_exists(fault: Fault) -> None:
    """A renamed test ended the whole run of the mutation test."""
    assert not fault.test or hasattr(kernel_tests()[fault.kernel], fault.test)


def test_nearly_all_planted_faults_are_caught() -> None:
    """The kernel tests must detect at least 95% of at least 60 faults."""
    faults = read_faults()
    assert len(faults) >= 60
    assert len({fault.id for fault in faults}) == len(faults)
    results = list(judge_all(faults))
    missed = [describe(v) for v in results if v.caught is None]
    sys.stdout.write("\n".join([*missed, summary(results)]) + "\n")
    assert not [v for v in results if v.stale]
    assert score(results) >= WANTED, "\n".join(missed)
