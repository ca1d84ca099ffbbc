"""Runs mutated inputs through entry points in processes with limits, and counts the outcomes.

A module `tests/fuzz/entries_*.py` lists its `ENTRY_POINTS`. Case N of an entry point is the same in
every run with one seed. For hours: `pytest tests/fuzz --fuzz-minutes 120 -s`.
"""

import collections
import contextlib
import importlib
import itertools
import json
import os
import pkgutil
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dflash_mlx.errors import DFlashError

SECONDS, MEMORY_BYTES = 20, 2 * 10**9
"""Limits of one case: more is a fault."""
MAX_MESSAGE = 2000
"""Longest error message; paths take a part of it."""

OK, REFUSED = "ok", "refused"


@dataclass(frozen=True)
class EntryPoint:
    """A reader of files of others.

    Args:
        name: as it stands in the table of outcomes.
        write_samples: writes valid inputs, one folder each, into a folder.
        mutate: changes a copy of one of these folders.
        run: reads the folder; raises `DFlashError` to refuse it. Anything else is a fault.
        quick_cases: cases of a run in CI.
    """

    name: str
    write_samples: Callable[[Path], None]
    mutate: Callable[[Random, Path], None]
    run: Callable[[Path], object]
    quick_cases: int


def entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of all modules, by name."""
    found: dict[str, EntryPoint] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("entries_"):
            listed = importlib.import_module(f"tests.fuzz.{module.name}").ENTRY_POINTS
            found |= {entry.name: entry for entry in listed}
    return found


@dataclass(frozen=True)
class Fault:
    """A case that ended badly."""

    entry: str
    case: int
    outcome: str
    details: str


def fuzz(
    seed: int, cases: Mapping[str, int] | None, minutes: float, n_workers: int = 2
) -> tuple[dict[str, collections.Counter[str]], list[Fault]]:
    """Run `cases` of each entry point, or cases of all for `minutes`; return the outcomes.

    The counts are by entry point and outcome. Each fault is printed when it happens.
    """
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    faults: list[Fault] = []
    deadline = time.monotonic() + (minutes * 60 if cases is None else 600)
    workers = [Worker(seed, number, n_workers, cases) for number in range(n_workers)]
    try:
        while (running := [worker for worker in workers if worker.running]) and (
            time.monotonic() < deadline
        ):
            ready, _, _ = select.select([worker.output for worker in running], [], [], 0.5)
            for worker in running:
                for entry, case, outcome, details in worker.read(worker.output in ready):
                    outcomes[entry][outcome] += 1
                    if outcome not in (OK, REFUSED):
                        faults.append(Fault(entry, case, outcome, details))
                        sys.stderr.write(f"{entry}, case {case}: {outcome}\n{details}\n")
    finally:
        for worker in workers:
            worker.stop()
    return outcomes, faults


class Worker:
    """A process that runs every n-th case; a new one takes over after a crash or a hang."""

    def __init__(
        self, seed: int, number: int, n_workers: int, cases: Mapping[str, int] | None
    ) -> None:
        self._arguments = [str(seed), str(number), str(n_workers), json.dumps(cases)]
        self._started: tuple[str, int, float] | None = None
        self._buffer = b""
        self.running = True
        self._start("", -1)

    def _start(self, entry: str, case: int) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.harness", *self._arguments]
        self._process = subprocess.Popen(
            [*command, entry, str(case)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        self._started, self._buffer = None, b""

    def read(self, ready: bool) -> Iterator[tuple[str, int, str, str]]:
        """Yield the finished cases since the last call: entry point, number, outcome, details."""
        data = os.read(self.output.fileno(), 1 << 16) if ready else b""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            kind, entry, case, outcome, details = json.loads(line)
            if kind == "start":
                self._started = entry, case, time.monotonic()
            elif kind == "end":
                self._started = None
                yield entry, case, outcome, details
        ended = ready and not data
        late = self._started is not None and time.monotonic() - self._started[2] > 2 * SECONDS
        if not ended and not late:
            return
        self.stop(grace_s=0 if late else 60)
        if self._started is None:
            self.running = False  # all cases are done, or the process does not start
            if self._process.returncode:
                yield "worker", 0, "died", f"exit code {self._process.returncode}"
            return
        entry, case, _ = self._started
        code = self._process.returncode
        yield entry, case, "hang" if late else "died", f"exit code {code}"
        self._start(entry, case)

    def stop(self, grace_s: float = 0) -> None:
        """End the process; one that has closed its output gets `grace_s` to remove its folder."""
        try:
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(arguments: Sequence[str]) -> None:
    """Run cases and write a line before and after each; see `Worker`."""
    seed, number, n_workers = (int(argument) for argument in arguments[:3])
    cases = json.loads(arguments[3])
    last = (arguments[4], int(arguments[5]))
    # libraries print; the lines go to the original output
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(*values: object) -> None:
        output.write(json.dumps(values) + "\n")
        output.flush()

    signal.signal(signal.SIGALRM, _raise_timeout)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        entries = entry_points()
        for entry in entries.values():
            entry.write_samples(Path(name) / entry.name)
        resource.setrlimit(resource.RLIMIT_DATA, (3 * MEMORY_BYTES, resource.RLIM_INFINITY))
        skipping = last[0] != ""
        for entry_name, case in _numbers(entries, cases, number, n_workers):
            if skipping:
                skipping = (entry_name, case) != last
                continue
            say("start", entry_name, case, "", "")
            outcome, details = _attempt(entries[entry_name], Path(name), seed, case)
            say("end", entry_name, case, outcome, details)


def _numbers(
    entries: Mapping[str, EntryPoint], cases: Mapping[str, int] | None, number: int, step: int
) -> Iterator[tuple[str, int]]:
    if cases is not None:
        for name in entries:
            yield from ((name, case) for case in range(number, cases.get(name, 0), step))
        return
    rounds = {name: max(1, entry.quick_cases // 50) for name, entry in entries.items()}
    for turn in itertools.count():
        for name, n_cases in rounds.items():
            first = turn * n_cases
            yield from ((name, case * step + number) for case in range(first, first + n_cases))


class TimeoutReached(BaseException):
    """A case took longer than `SECONDS`."""


def _raise_timeout(*_: object) -> None:
    raise TimeoutReached


def _attempt(entry: EntryPoint, folder: Path, seed: int, case: int) -> tuple[str, str]:
    """Run one case; return its outcome and details of a fault."""
    dice = Random(f"{entry.name} {seed} {case}")
    sample = dice.choice(sorted(path for path in (folder / entry.name).iterdir()))
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sample, place)
    entry.mutate(dice, place)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the resident memory
    signal.alarm(SECONDS)
    try:
        entry.run(place)
        outcome, details = OK, ""
    except DFlashError as error:
        text = str(error)
        good = "\n" not in text and len(text) < MAX_MESSAGE
        outcome, details = (REFUSED, "") if good else ("message", text[:3000])
    except TimeoutReached:
        outcome, details = "hang", traceback.format_exc()[-3000:]
    except BaseException as error:  # noqa: BLE001  any other exception is the fault looked for
        memory = isinstance(error, MemoryError)
        outcome, details = "memory" if memory else "traceback", traceback.format_exc()[-3000:]
    finally:
        signal.alarm(0)
    if outcome in (OK, REFUSED) and (peak := _peak_bytes()) > MEMORY_BYTES:
        outcome, details = "memory", f"{peak / 1e9:.1f} GB"
    return outcome, details


def _peak_bytes() -> int:
    """Return the peak of the resident memory since the case began; 0 where it is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def table(outcomes: Mapping[str, collections.Counter[str]]) -> str:
    """Return the outcomes as a Markdown table."""
    lines = ["| entry point | inputs | accepted | refused | faults |", "|---|---|---|---|---|"]
    for name, counts in sorted(outcomes.items()):
        n, ok, refused = counts.total(), counts[OK], counts[REFUSED]
        lines.append(f"| {name} | {n} | {ok} | {refused} | {n - ok - refused} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
