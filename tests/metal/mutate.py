"""Plants every fault in our kernels and prints how many the tests catch.

    python -m tests.metal.mutate [part of a fault's name ...]

A fault is caught when one of a few cases of the kernel's own tests gives a wrong result, or the
executor reports wrong behaviour. Cases run traced first, then plain in the three lane orders.
Exit status 1 when less than 95% are caught.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import mlx.core as mx

from dflash_mlx.metal.build import Device, Launch
from tests.metal.covering import Case
from tests.metal.device import ExecutorDevice, WrongBehaviour
from tests.metal.executor import CompileError, Executor, Objects
from tests.metal.faults import Fault, StaleFault, read_faults
from tests.metal.kernel_cases import cases, kernel_tests, run_case, run_test

Attempt = Callable[[Device], None]

WANTED = 0.95
TRACED_CASES = 4
PLAIN_CASES = 6
LIMIT_S = 15


@dataclass(frozen=True)
class Verdict:
    """What happened to a fault.

    caught: the kind of the report or "wrong result"; None when every case passed.
    stale: why the fault could not be planted, so that it counts as not caught.
    """

    fault: Fault
    caught: str | None
    cases: int
    seconds: float
    stale: str | None = None


class FaultyDevice:
    """Plants a fault in every launch before it runs on another device."""

    def __init__(self, device: Device, fault: Fault) -> None:
        self.device, self.fault = device, fault
        self.planted = False

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Outputs of the faulty kernel."""
        faulty = self.fault.plant(launch.kernel)
        if faulty is None:
            return self.device.run(launch)
        self.planted = True
        return self.device.run(replace(launch, kernel=faulty))


def judge(fault: Fault) -> Verdict:
    """Run cases of the fault's kernel until one catches it."""
    started = time.monotonic()
    try:
        caught, tried = _hunt(fault)
    except (StaleFault, CompileError) as error:
        return Verdict(fault, None, 0, time.monotonic() - started, str(error))
    return Verdict(fault, caught, tried, time.monotonic() - started)


def _hunt(fault: Fault) -> tuple[str | None, int]:
    """What caught the fault and after how many cases; raises StaleFault when it fits nowhere."""
    tried, planted = 0, False
    for executor, attempt in _attempts(fault, Objects()):
        tried += 1
        device = FaultyDevice(ExecutorDevice(executor), fault)
        caught = _caught(attempt, device)
        planted = planted or device.planted
        if caught and device.planted:
            return caught, tried
    if not planted:
        raise StaleFault(f"no case launches a kernel with {fault.old!r}")
    return None, tried


def judge_all(faults: Iterable[Fault], jobs: int = 2) -> Iterator[Verdict]:
    """Verdicts in the order of the faults as they come, worked out by `jobs` processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(judge, faults)


def score(verdicts: Sequence[Verdict]) -> float:
    """Share of the faults that were caught."""
    return sum(v.caught is not None for v in verdicts) / len(verdicts)


def describe(v: Verdict) -> str:
    """One line about a verdict."""
    if v.stale:
        return f"STALE     {v.fault.id} [{v.stale}]"
    outcome = "caught" if v.caught else "SURVIVED"
    return f"{outcome:9} {v.fault.id} [{v.caught or 'no'} in {v.cases} cases, {v.seconds:.1f} s]"


def summary(verdicts: Sequence[Verdict]) -> str:
    """The score in words."""
    n_caught = sum(v.caught is not None for v in verdicts)
    return f"{n_caught} of {len(verdicts)} planted faults caught: {score(verdicts):.1%}"


def _attempts(fault: Fault, objects: Objects) -> Iterator[tuple[Executor, Attempt]]:
    """Executors and what to run on them, likely catches first."""
    module = kernel_tests()[fault.kernel]

    def executor(traced: bool, order: str) -> Executor:
        return Executor(traced, order, seed=7, limit_s=LIMIT_S, objects=objects)

    if fault.test:
        test = getattr(module, fault.test)
        traced = "traced_device" in inspect.signature(test).parameters
        yield executor(traced, "random"), lambda device: run_test(test, device)
    for case in _drawn(fault, cases(module, watched=True), TRACED_CASES):
        yield executor(True, "random"), functools.partial(run_case, module, case)
    for case in _drawn(fault, cases(module), PLAIN_CASES):
        order = case.get("order", "descending")
        yield executor(False, order), functools.partial(run_case, module, case)


def _drawn(fault: Fault, every: Sequence[Case], most: int) -> list[Case]:
    """Up to `most` cases that can show the fault, always the same draw."""
    able = [case for case in every if fault.shows_in(case)]
    return random.Random(7).sample(able, min(most, len(able)))


def _caught(attempt: Attempt, device: Device) -> str | None:
    try:
        attempt(device)
    except WrongBehaviour as wrong:
        return wrong.reports[0].kind
    except (AssertionError, IndexError, ValueError):  # a test that falls over has failed too
        return "wrong result"
    return None


def main(arguments: Sequence[str]) -> int:
    """Judge the faults whose id holds one of the arguments (all without arguments)."""
    chosen = [f for f in read_faults() if not arguments or any(a in f.id for a in arguments)]
    verdicts = []
    for verdict in judge_all(chosen):
        verdicts.append(verdict)
        sys.stdout.write(describe(verdict) + "\n")
        sys.stdout.flush()
    sys.stdout.write(summary(verdicts) + "\n")
    return 0 if score(verdicts) >= WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
