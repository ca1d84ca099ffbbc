"""Apple chips with their memory bandwidth and arithmetic, and the memory that Metal may use.

It must not know models. A description such as "M2 16GB" becomes a machine that can be asked about
without owning it.
"""

import re
from dataclasses import dataclass

from dflash_mlx.errors import BadRequest

GIB = 2**30


@dataclass(frozen=True)
class AppleChip:
    """One chip as sold.

    Args:
        name: for example "M4 Max".
        bandwidth: specified memory bandwidth in bytes per second.
        flops: arithmetic of matrix products in FLOP per second: FP32 of the GPU's ALUs, which run
            FP16 at the same rate, and of the matrix units from M5 on.
        memory_gib: memory sizes in GiB.
    """

    name: str
    bandwidth: float
    flops: float
    memory_gib: tuple[int, ...]


def _chip(name: str, gb_per_s: float, tflops: float, *memory_gib: int) -> AppleChip:
    return AppleChip(name, gb_per_s * 1e9, tflops * 1e12, memory_gib)


CHIPS = (
    _chip("M1", 68, 2.6, 8, 16),
    _chip("M1 Pro", 200, 5.2, 16, 32),
    _chip("M1 Max", 400, 10.4, 32, 64),
    _chip("M1 Ultra", 800, 20.8, 64, 128),
    _chip("M2", 100, 3.6, 8, 16, 24),
    _chip("M2 Pro", 200, 6.8, 16, 32),
    _chip("M2 Max", 400, 13.6, 32, 64, 96),
    _chip("M2 Ultra", 800, 27.2, 64, 128, 192),
    _chip("M3", 100, 4.1, 8, 16, 24),
    _chip("M3 Pro", 150, 6.4, 18, 36),
    _chip("M3 Max", 300, 14, 36, 96),
    _chip("M3 Max", 400, 16, 48, 64, 128),
    _chip("M3 Ultra", 819, 28, 96, 256, 512),
    _chip("M4", 120, 4.6, 16, 24, 32),
    _chip("M4 Pro", 273, 9.2, 24, 48, 64),
    _chip("M4 Max", 410, 14.7, 36),
    _chip("M4 Max", 546, 18.4, 48, 64, 128),
    _chip("M5", 153, 17.5, 16, 24, 32),
    _chip("M5 Pro", 307, 35, 24, 48, 64),
    _chip("M5 Max", 460, 56, 36),
    _chip("M5 Max", 614, 70, 48, 64, 128),
    _chip("M5 Ultra", 1200, 140, 96, 256, 512),
)
"""Bandwidth and FP32 rates from public hardware tables; two entries where Apple sells two numbers
of GPU cores. M5: 70 TFLOPS of the matrix units of 40 cores is an estimate, the others are scaled
by cores; memory sizes of M5 Pro, Max and Ultra are those of M4 and M3 Ultra."""

_MACHINE = re.compile(r"(?:apple\s+)?(m\d+(?:\s+(?:pro|max|ultra))?)\s+(\d+)\s*(?:gb|gib)?", re.I)


@dataclass(frozen=True)
class MacDescription:
    """A chip with a memory size."""

    chip: AppleChip
    memory_bytes: int

    @property
    def name(self) -> str:
        """Return the name that `--as` takes, for example "M2 16GB"."""
        return f"{self.chip.name} {self.memory_bytes // GIB}GB"

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that Metal may use: two thirds of up to 32 GiB, three quarters of more.

        These are the values of `recommendedMaxWorkingSetSize`, as llama.cpp logs them: 10923 MiB
        of 16 GiB, 21845 of 32, 27648 of 36, 49152 of 64, 98304 of 128.
        """
        small = self.memory_bytes <= 32 * GIB
        return self.memory_bytes * 2 // 3 if small else self.memory_bytes * 3 // 4


def all_macs() -> tuple[MacDescription, ...]:
    """Return every chip with every memory size, in the order of the table."""
    return tuple(
        MacDescription(chip, size * GIB) for chip in CHIPS for size in sorted(chip.memory_gib)
    )


def read_mac(text: str) -> MacDescription:
    """Return the Mac of a description such as "M2 16GB" or "M4 Max 64".

    Raises:
        BadRequest: the chip is not in the table, or no memory size is given.
    """
    match = _MACHINE.fullmatch(text.strip())
    chip = find_chip(match[1], int(match[2])) if match else None
    if match is None or chip is None:
        raise BadRequest(
            f"--as is {text!r}; it needs a chip and its memory, as in 'M2 16GB', or list"
        )
    if not 1 <= int(match[2]) <= 4096:
        raise BadRequest(f"--as is {text!r}; it needs a memory size from 1 to 4096 GB")
    return MacDescription(chip, int(match[2]) * GIB)


def find_chip(name: str, memory_gib: int | None = None) -> AppleChip | None:
    """Return the chip called `name` ("Apple M2 Pro" too); None if it is not in the table.

    Of two entries the one sold with `memory_gib` is returned, else the slower one.
    """
    wanted = " ".join(name.casefold().removeprefix("apple").split())
    found = [chip for chip in CHIPS if chip.name.casefold() == wanted]
    exact = [chip for chip in found if memory_gib in chip.memory_gib]
    return next(iter(exact or found), None)
