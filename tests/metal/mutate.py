"""Mutation test: applies every fault to the kernels and prints how many the tests detect.

python -m tests.metal.mutate [part of a fault's name ...]
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
class FaultResult:
    """The result for one fault.

    caught: the kind of the report or "wrong result"; None when every case passed.
    stale: why the fault could not be applied; it then counts as not caught.
    """

    fault: Fault
    caught: str | None
    cases: int
    seconds: float
    stale: str | None = None


class FaultyDevice:
    """Applies a fault to every launch before it runs on another device."""

    def __init__(self, device: Device, fault: Fault) -> None:
        self.device, self.fault = device, fault
        self.planted = False

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return the outputs of the faulty kernel."""
        faulty = self.fault.plant(launch.kernel)
        if faulty is None:
            return self.device.run(launch)
        self.planted = True
        return self.device.run(replace(launch, kernel=faulty))


def judge(fault: Fault) -> FaultResult:
    """Run cases of the fault's kernel, traced first, until one detects it."""
    started = time.monotonic()
    try:
        caught, tried = _hunt(fault)
    except (StaleFault, CompileError) as error:
        return FaultResult(fault, None, 0, time.monotonic() - started, str(error))
    return FaultResult(fault, caught, tried, time.monotonic() - started)


def _hunt(fault: Fault) -> tuple[str | None, int]:
    """Return what detected the fault and after how many cases.

    Raises StaleFault when the text of the fault is in no launched kernel.
    """
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


def judge_all(faults: Iterable[Fault], jobs: int = 2) -> Iterator[FaultResult]:
    """Yield the results in the order of the faults, computed by `jobs` processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(judge, faults)


def score(results: Sequence[FaultResult]) -> float:
    """Return the share of the faults that were detected."""
    return sum(v.caught is not None for v in results) / len(results)


def describe(v: FaultResult) -> str:
    """Return one line of text for a result."""
    if v.stale:
        return f"STALE     {v.fault.id} [{v.stale}]"
    outcome = "caught" if v.caught else "SURVIVED"
    return f"{outcome:9} {v.fault.id} [{v.caught or 'no'} in {v.cases} cases, {v.seconds:.1f} s]"


def summary(results: Sequence[FaultResult]) -> str:
    """Return the score as text."""
    n_caught = sum(v.caught is not None for v in results)
    return f"{n_caught} of {len(results)} planted faults caught: {score(results):.1%}"


def _attempts(fault: Fault, objects: Objects) -> Iterator[tuple[Executor, Attempt]]:
    """Yield executors and what to run on them, the most sensitive first."""
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
    """Return a fixed sample of up to `most` cases that can show the fault."""
    able = [case for case in every if fault.shows_in(case)]
    return random.Random(7).sample(able, min(most, len(able)))


def _caught(attempt: Attempt, device: Device) -> str | None:
    try:
        attempt(device)
    except WrongBehaviour as wrong:
        return wrong.reports[0].kind
    except (AssertionError, IndexError, ValueError):  # an error in a test also detects the fault
        return "wrong result"
    return None


def main(arguments: Sequence[str]) -> int:
    """Test the faults whose id contains one of the arguments, or all without arguments.

    Returns exit status 1 when less than 95% are detected.
    """
    chosen = [f for f in read_faults() if not arguments or any(a in f.id for a in arguments)]
    results = []
    for result in judge_all(chosen):
        results.append(result)
        sys.stdout.write(describe(result) + "\n")
        sys.stdout.flush()
    sys.stdout.write(summary(results) + "\n")
    return 0 if score(results) >= WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
