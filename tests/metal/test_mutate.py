"""The tests catch planted faults; the score is printed with `-rP` and by tests.metal.mutate."""

from __future__ import annotations

import sys

import pytest

from dflash_mlx.metal.build import Kernel
from tests.metal.faults import Fault, StaleFault, read_faults
from tests.metal.kernel_cases import shipped_kernels
from tests.metal.mutate import WANTED, describe, judge, judge_all, score, summary

pytestmark = pytest.mark.usefixtures("objects")


def test_a_fault_is_caught() -> None:
    """An engine that plants nothing would report 0%."""
    verdict = judge(Fault("dense_verify", "zero", "T(slice_sum", "T(0.0f * slice_sum"))
    assert verdict.caught == "wrong result"


def test_a_harmless_change_survives() -> None:
    """An engine that calls everything caught would report 100%."""
    verdict = judge(Fault("dense_verify", "same", "m < M && n < N", "n < N && m < M"))
    assert (verdict.caught, verdict.stale) == (None, None)


def test_a_fault_whose_text_is_gone_is_stale() -> None:
    """After a rewrite a fault may fit nowhere; it must not count as caught."""
    verdict = judge(Fault("dense_verify", "old", "no such text", ""))
    assert verdict.caught is None
    assert verdict.stale


def test_a_fault_must_fit_once() -> None:
    """A change in two places is not the fault that its name tells."""
    kernel = Kernel("k", ("x",), ("y",), "a b", "a")
    assert Fault("k", "one", "b", "c").plant(kernel) == Kernel(
        "k_fault", ("x",), ("y",), "a c", "a"
    )
    assert Fault("k", "none", "z", "").plant(kernel) is None
    with pytest.raises(StaleFault, match="2 times"):
        Fault("k", "two", "a", "").plant(kernel)


@pytest.mark.parametrize("fault", read_faults(), ids=lambda fault: fault.id)
def test_every_fault_fits_the_shipped_text(fault: Fault) -> None:
    """Whoever rewords a kernel learns at once which faults to reword with it."""
    texts = (kernel.header + kernel.body for kernel in shipped_kernels().values())
    assert 1 in {text.count(fault.old) for text in texts}


def test_nearly_all_planted_faults_are_caught() -> None:
    """What the kernel tests are worth: at least 95% of at least 60 faults."""
    faults = read_faults()
    assert len(faults) >= 60
    assert len({fault.id for fault in faults}) == len(faults)
    verdicts = list(judge_all(faults))
    missed = [describe(v) for v in verdicts if v.caught is None]
    sys.stdout.write("\n".join([*missed, summary(verdicts)]) + "\n")
    assert not [v for v in verdicts if v.stale]
    assert score(verdicts) >= WANTED, "\n".join(missed)
