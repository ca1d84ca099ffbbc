"""Peak rates of chips, from public specifications; not measured."""

from __future__ import annotations

from dataclasses import dataclass

FLOPS_PER_MULTIPLY = 2 * 8 * 8 * 8


@dataclass(frozen=True)
class Chip:
    """Memory bandwidth in GB/s and float32 rate in TFLOP/s of the largest configuration."""

    name: str
    bandwidth: float
    tflops: float


CHIPS = (
    Chip("M1 Max", 400, 10.4),
    Chip("M2 Ultra", 800, 27.2),
    Chip("M3 Max", 400, 16.0),
    Chip("M4 Pro", 273, 9.2),
    Chip("M4 Max", 546, 18.4),
    Chip("M5 Max", 614, 18.0),
)


def least_ms(chip: Chip, unique_bytes: int, flops: int) -> float:
    """Return the minimum milliseconds: every byte and every operation once, at peak rate."""
    return max(unique_bytes / (chip.bandwidth * 1e9), flops / (chip.tflops * 1e12)) * 1e3
