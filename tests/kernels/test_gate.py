"""The gate, with a clock that only moves when a fake chip works."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.config import KernelPolicy
from dflash_mlx.kernels.gate import Gate, Verdict
from dflash_mlx.kernels.gate_store import GateStore, Machine
from dflash_mlx.metal.tuning_case import TuningCase

MACHINE = Machine("Apple M4 Max", "26.1", "0.32.4")


@dataclass(frozen=True)
class Entrant:
    slices: int


@dataclass
class Chip:
    """Seconds per step of stock MLX and of each candidate; what it refuses and gets wrong."""

    stock_s: float = 0.010
    ours_s: dict[int, float] = field(default_factory=lambda: {8: 0.005, 4: 0.006, 2: 0.007})
    refused: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    compile_s: float = 0.5
    now: float = 0.0
    checked: list[int] = field(default_factory=list)
    evaluated: int = 0

    def clock(self) -> float:
        return self.now

    def evaluate(self, chain: Any) -> None:
        """A chain is (seconds per step, steps); the first touch of one step compiles."""
        seconds, steps = chain
        self.evaluated += 1
        self.now += seconds * steps + (self.compile_s if steps == 1 else 0.0)

    def check(self, candidate: Entrant) -> str | None:
        self.checked.append(candidate.slices)
        if candidate.slices in self.refused:
            raise ValueError("256 threads asked, 224 is the limit of this pipeline")
        return "off by 3 where values reach 9" if candidate.slices in self.wrong else None

    def contest(self, shape: str = "64x64", source_hash: str = "abc") -> TuningCase[Entrant]:
        return TuningCase(
            "quantized_verify",
            source_hash,
            shape,
            [Entrant(slices) for slices in self.ours_s],
            self.check,
            lambda candidate, steps: self.chain(self.ours_s[candidate.slices], steps),
            lambda steps: self.chain(self.stock_s, steps),
        )

    @staticmethod
    def chain(seconds: float, steps: int) -> Any:
        return seconds, steps


def _gate(
    chip: Chip, folder: Path, policy: KernelPolicy = "auto", machine: Machine = MACHINE
) -> Gate:
    return Gate(GateStore(folder, machine), policy, chip.clock, chip.evaluate)


def _decide(chip: Chip, folder: Path, policy: KernelPolicy = "auto") -> Verdict[Entrant]:
    return _gate(chip, folder, policy).answer(chip.contest())


def test_the_fastest_right_geometry_wins(tmp_path: Path) -> None:
    """The best guess is a guess; what counts is this chip."""
    verdict = _decide(Chip(ours_s={8: 0.006, 4: 0.004, 2: 0.005}), tmp_path)
    assert verdict.geometry == Entrant(4)
    assert verdict.reason.startswith("2.50x stock MLX")


@pytest.mark.parametrize(("stock_s", "used"), [(0.00524, False), (0.00526, True)])
def test_five_percent_decide(stock_s: float, used: bool, tmp_path: Path) -> None:
    """A kernel that is not clearly faster is not worth its risk."""
    verdict = _decide(Chip(stock_s=stock_s, ours_s={8: 0.005}), tmp_path)
    assert (verdict.geometry is not None) is used
    assert used or "1.05x is needed" in verdict.reason


def test_compilation_is_not_timed(tmp_path: Path) -> None:
    """The first launch compiles for a second; timed, it would hide any gain."""
    verdict = _decide(Chip(compile_s=100.0), tmp_path)
    assert verdict.reason.startswith("2.00x")


def test_a_wrong_kernel_is_never_raced_nor_used(tmp_path: Path) -> None:
    """Fast and wrong is the one outcome that must not happen, whatever the policy."""
    policies: tuple[KernelPolicy, ...] = ("auto", "force")
    for policy in policies:
        chip = Chip(wrong=frozenset({8}))
        verdict = _decide(chip, tmp_path / policy, policy)
        assert verdict.geometry is None
        assert "wrong: off by 3" in verdict.reason
        assert chip.evaluated == 0


def test_wrong_in_a_later_geometry_is_wrong_too(tmp_path: Path) -> None:
    """A kernel that a chip breaks in one cut is not to be trusted in the others."""
    assert _decide(Chip(wrong=frozenset({4})), tmp_path).geometry is None


def test_a_refused_geometry_falls_back_to_a_smaller_one(tmp_path: Path) -> None:
    """Thread limits differ between chips and show only when a result is evaluated."""
    verdict = _decide(Chip(refused=frozenset({8, 4})), tmp_path)
    assert verdict.geometry == Entrant(2)


def test_a_chip_that_refuses_all_uses_stock(tmp_path: Path) -> None:
    """The reason must reach the user of doctor, not a traceback in the first answer."""
    verdict = _decide(Chip(refused=frozenset({8, 4, 2})), tmp_path)
    assert verdict.geometry is None
    assert "refused by this chip: 256 threads asked, 224 is the limit" in verdict.reason


def test_an_answer_is_found_again_without_device_time(tmp_path: Path) -> None:
    """Racing happens once per chip and version, not once per start."""
    first = _decide(Chip(), tmp_path)
    chip = Chip()
    assert _decide(chip, tmp_path) == first
    assert _gate(chip, tmp_path).recall(chip.contest()) == first
    assert chip.checked == []
    assert chip.evaluated == 0


@pytest.mark.parametrize(
    "machine",
    [
        Machine("Apple M3 Max", "26.1", "0.32.4"),
        Machine("Apple M4 Max", "26.2", "0.32.4"),
        Machine("Apple M4 Max", "26.1", "0.32.5"),
    ],
)
def test_an_answer_never_crosses_a_version(machine: Machine, tmp_path: Path) -> None:
    """A driver or MLX update can turn a win into a loss, and right into wrong."""
    _decide(Chip(), tmp_path)
    assert _gate(Chip(), tmp_path, machine=machine).recall(Chip().contest()) is None


def test_a_changed_kernel_or_shape_is_asked_again(tmp_path: Path) -> None:
    """An answer about last month's kernel says nothing about today's."""
    _decide(Chip(), tmp_path)
    gate = _gate(Chip(), tmp_path)
    assert gate.recall(Chip().contest(source_hash="def")) is None
    assert gate.recall(Chip().contest(shape="64x128")) is None


def test_a_stored_geometry_that_no_longer_exists_is_asked_again(tmp_path: Path) -> None:
    """A release may drop a geometry; its stored name must not be launched."""
    _decide(Chip(), tmp_path)
    assert _gate(Chip(), tmp_path).recall(Chip(ours_s={4: 0.1}).contest()) is None


def test_off_uses_nothing_and_forgets_nothing(tmp_path: Path) -> None:
    """--kernels off must not touch the device, nor spoil what was raced."""
    raced = _decide(Chip(), tmp_path)
    chip = Chip()
    verdict = _decide(chip, tmp_path, "off")
    assert verdict.geometry is None
    assert verdict.reason == "kernels are off"
    assert chip.checked == []
    assert _decide(Chip(), tmp_path) == raced


def test_force_skips_the_race_and_does_not_pass_for_one(tmp_path: Path) -> None:
    """--kernels force is for trying; a later auto must still race."""
    chip = Chip(stock_s=0.001)
    verdict = _decide(chip, tmp_path, "force")
    assert verdict.geometry == Entrant(8)
    assert chip.evaluated == 0
    assert _decide(Chip(stock_s=0.001), tmp_path).geometry is None
