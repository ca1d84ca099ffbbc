"""The autotuner on a fake chip whose clock advances only when it works."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dflash_mlx.config import KernelPolicy
from dflash_mlx.kernels.autotuner import Autotuner, TuningResult
from dflash_mlx.kernels.result_store import ResultStore, TuningPlatform
from dflash_mlx.metal.tuning_case import TimedWork, TuningCase

PLATFORM = TuningPlatform("Apple M4 Max", "26.1", "0.32.4")


@dataclass(frozen=True)
class Candidate:
    slices: int


@dataclass
class Chip:
    """Seconds per step of stock MLX and of each candidate, and the candidates that fail."""

    stock_s: float = 0.010
    ours_s: dict[int, float] = field(default_factory=lambda: {8: 0.005, 4: 0.006, 2: 0.007})
    refused: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    compile_s: float = 0.5
    failing: BaseException | None = None
    now: float = 0.0
    checked: list[int] = field(default_factory=list)
    evaluated: int = 0

    def clock(self) -> float:
        return self.now

    def evaluate(self, chain: Any) -> None:
        """Advance the clock for a chain (seconds per step, steps); one step also compiles."""
        seconds, steps = chain
        self.evaluated += 1
        self.now += seconds * steps + (self.compile_s if steps == 1 else 0.0)

    def check(self, candidate: Candidate) -> str | None:
        self.checked.append(candidate.slices)
        if candidate.slices in self.refused:
            raise ValueError("256 threads asked, 224 is the limit of this pipeline")
        if self.failing:
            raise self.failing
        return "off by 3 where values reach 9" if candidate.slices in self.wrong else None

    def case(self, shape: str = "64x64", source_hash: str = "abc") -> TuningCase[Candidate]:
        return TuningCase(
            "quantized_verify",
            source_hash,
            shape,
            [Candidate(slices) for slices in self.ours_s],
            self.check,
            [
                TimedWork(
                    lambda candidate, steps: self.chain(self.ours_s[candidate.slices], steps),
                    partial(self.chain, self.stock_s),
                )
            ],
        )

    @staticmethod
    def chain(seconds: float, steps: int) -> Any:
        return seconds, steps


def _autotuner(
    chip: Chip,
    folder: Path,
    policy: KernelPolicy = "auto",
    platform: TuningPlatform = PLATFORM,
    retry: bool = False,
) -> Autotuner:
    store = ResultStore(folder, platform)
    return Autotuner(store, policy, chip.clock, chip.evaluate, retry)


def _tune(chip: Chip, folder: Path, policy: KernelPolicy = "auto") -> TuningResult[Candidate]:
    return _autotuner(chip, folder, policy).tune(chip.case())


def test_the_fastest_correct_geometry_is_selected(tmp_path: Path) -> None:
    """The order of the candidates is a guess; the measured time decides."""
    result = _tune(Chip(ours_s={8: 0.006, 4: 0.004, 2: 0.005}), tmp_path)
    assert result.geometry == Candidate(4)
    assert result.reason.startswith("2.50x stock MLX")


@pytest.mark.parametrize(("stock_s", "used"), [(0.00524, False), (0.00526, True)])
def test_five_percent_tune(stock_s: float, used: bool, tmp_path: Path) -> None:
    """A kernel that is less than 5% faster is within measurement noise."""
    result = _tune(Chip(stock_s=stock_s, ours_s={8: 0.005}), tmp_path)
    assert (result.geometry is not None) is used
    assert used or "1.05x is needed" in result.reason


def test_compilation_is_not_timed(tmp_path: Path) -> None:
    """The first launch compiles for up to a second, which would hide any gain."""
    result = _tune(Chip(compile_s=100.0), tmp_path)
    assert result.reason.startswith("2.00x")


def test_a_wrong_kernel_is_neither_timed_nor_used(tmp_path: Path) -> None:
    """No policy may use a kernel that computes wrong values."""
    policies: tuple[KernelPolicy, ...] = ("auto", "force")
    for policy in policies:
        chip = Chip(wrong=frozenset({8}))
        result = _tune(chip, tmp_path / policy, policy)
        assert result.geometry is None
        assert "wrong: off by 3" in result.reason
        assert chip.evaluated == 0


def test_a_kernel_that_is_wrong_in_one_geometry_is_not_used(tmp_path: Path) -> None:
    """An error in one geometry may also be present, but not visible, in the others."""
    assert _tune(Chip(wrong=frozenset({4})), tmp_path).geometry is None


def test_a_refused_geometry_falls_back_to_a_smaller_one(tmp_path: Path) -> None:
    """Thread limits differ between chips and appear only when a result is evaluated."""
    result = _tune(Chip(refused=frozenset({8, 4})), tmp_path)
    assert result.geometry == Candidate(2)


def test_a_chip_that_refuses_all_uses_stock(tmp_path: Path) -> None:
    """Doctor must show the reason; the first answer must not end in a traceback."""
    result = _tune(Chip(refused=frozenset({8, 4, 2})), tmp_path)
    assert result.geometry is None
    assert "refused by this chip: 256 threads asked, 224 is the limit" in result.reason


def test_a_stored_result_uses_no_device_time(tmp_path: Path) -> None:
    """Tuning runs once per chip and version, not at every start."""
    first = _tune(Chip(), tmp_path)
    chip = Chip()
    assert _tune(chip, tmp_path) == first
    assert _autotuner(chip, tmp_path).stored(chip.case()) == first
    assert chip.checked == []
    assert chip.evaluated == 0


@pytest.mark.parametrize(
    "platform",
    [
        TuningPlatform("Apple M3 Max", "26.1", "0.32.4"),
        TuningPlatform("Apple M4 Max", "26.2", "0.32.4"),
        TuningPlatform("Apple M4 Max", "26.1", "0.32.5"),
    ],
)
def test_a_result_is_not_used_on_another_platform(platform: TuningPlatform, tmp_path: Path) -> None:
    """An update of macOS or MLX can change which kernel is faster, or correct."""
    _tune(Chip(), tmp_path)
    assert _autotuner(Chip(), tmp_path, platform=platform).stored(Chip().case()) is None


def test_a_changed_kernel_or_shape_is_tuned_again(tmp_path: Path) -> None:
    """A result of an older kernel source does not hold for the current one."""
    _tune(Chip(), tmp_path)
    autotuner = _autotuner(Chip(), tmp_path)
    assert autotuner.stored(Chip().case(source_hash="def")) is None
    assert autotuner.stored(Chip().case(shape="64x128")) is None


def test_a_stored_geometry_that_no_longer_exists_is_tuned_again(tmp_path: Path) -> None:
    """A release may remove a geometry; its stored fields must not be launched."""
    _tune(Chip(), tmp_path)
    assert _autotuner(Chip(), tmp_path).stored(Chip(ours_s={4: 0.1}).case()) is None


def test_off_selects_stock_mlx_and_keeps_stored_results(tmp_path: Path) -> None:
    """--kernels off must not use the device nor overwrite results."""
    timed = _tune(Chip(), tmp_path)
    chip = Chip()
    result = _tune(chip, tmp_path, "off")
    assert result.geometry is None
    assert result.reason == "kernels are off"
    assert chip.checked == []
    assert _tune(Chip(), tmp_path) == timed


def test_a_forced_result_is_not_timed_and_stored_apart(tmp_path: Path) -> None:
    """After --kernels force, the policy auto must still time the candidates."""
    chip = Chip(stock_s=0.001)
    result = _tune(chip, tmp_path, "force")
    assert result.geometry == Candidate(8)
    assert chip.evaluated == 0
    assert _tune(Chip(stock_s=0.001), tmp_path).geometry is None


def test_both_ends_of_a_range_must_be_faster(tmp_path: Path) -> None:
    """A kernel that wins at 8 rows lost at 5, where stock MLX reads the weights once."""
    chip = Chip()
    work = [
        TimedWork[Candidate](
            lambda candidate, steps: chip.chain(0.005, steps), partial(chip.chain, s)
        )
        for s in (0.0051, 0.010)
    ]
    result = _autotuner(chip, tmp_path).tune(replace(chip.case(), timed=work))
    assert result.geometry is None
    assert result.reason.startswith("1.02x")


OUT_OF_MEMORY = RuntimeError("[metal::malloc] Unable to allocate 1 GB")


def test_a_failure_that_may_be_temporary_is_tuned_again(tmp_path: Path) -> None:
    """One lack of memory disabled a kernel on this chip and these versions for ever."""
    first = _tune(Chip(failing=OUT_OF_MEMORY), tmp_path)
    assert (first.geometry, first.transient) == (None, True)
    assert first.reason == f"failed on this chip: {OUT_OF_MEMORY}"
    assert _tune(Chip(), tmp_path).geometry == Candidate(8)


def test_a_failure_at_three_starts_is_final(tmp_path: Path) -> None:
    """A failure that repeats must not take device time at every start."""
    for _ in range(3):
        assert _tune(Chip(failing=OUT_OF_MEMORY), tmp_path).geometry is None
    chip = Chip()
    assert _tune(chip, tmp_path).geometry is None
    assert chip.checked == []
    assert _autotuner(chip, tmp_path, retry=True).tune(chip.case()).geometry == Candidate(8)


def test_a_refusal_is_not_tuned_again(tmp_path: Path) -> None:
    """The thread limit of a pipeline does not change between starts."""
    _tune(Chip(refused=frozenset({8, 4, 2})), tmp_path)
    chip = Chip()
    assert _tune(chip, tmp_path).geometry is None
    assert chip.checked == []


def test_noisy_timings_are_not_final(tmp_path: Path) -> None:
    """A kernel that lost because a game used the GPU was never tuned again."""
    chip, random = Chip(ours_s={8: 0.010}), Random(3)
    clock = chip.evaluate
    noisy = lambda chain: clock((chain[0] * random.uniform(0.2, 5), chain[1]))  # noqa: E731
    object.__setattr__(chip, "evaluate", noisy)
    result = _tune(chip, tmp_path)
    assert result.transient
    assert "other work used the GPU" in result.reason
    assert _autotuner(chip, tmp_path).stored(chip.case()) is None


def test_an_interrupted_case_leaves_no_mark(tmp_path: Path) -> None:
    """Ctrl-C during a case must not look like a case that ended the process."""
    with pytest.raises(KeyboardInterrupt):
        _tune(Chip(failing=KeyboardInterrupt()), tmp_path)
    assert _tune(Chip(), tmp_path).geometry == Candidate(8)


CRASH = """
import os, sys
from pathlib import Path
from tests.kernels.test_autotuner import Chip, _tune
chip = Chip()
chip.check = lambda candidate: os._exit(9)
_tune(chip, Path(sys.argv[1]))
"""


def test_a_case_that_ended_the_process_is_not_started_again(tmp_path: Path) -> None:
    """A kernel that hangs the GPU took the process down at every start."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", CRASH, tmp_path], cwd=root, check=False)
    assert done.returncode == 9
    chip = Chip()
    result = _tune(chip, tmp_path)
    assert result.geometry is None
    assert "ended the process" in result.reason
    assert chip.checked == []
    assert _autotuner(chip, tmp_path, retry=True).tune(chip.case()).geometry == Candidate(8)
