"""Answers on which a real draft was tried behind every token: `data/recorded.toml`.

Made by `benchmarks/record_acceptance.py` with SmolLM2-135M and the embedded draft at block 8.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from dflash_mlx.simulate.tables import read_tables

_FULL = 99
"""What a confidence of 1 is written as: two digits a token."""


@dataclass(frozen=True)
class Recording:
    """One answer: right draft tokens in a row behind every token, and the target's confidence."""

    name: str
    right: tuple[int, ...]
    confidence: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.right) == len(self.confidence), self.name


@cache
def recordings() -> Mapping[str, Recording]:
    """Return the recordings that ship with the package, by name."""
    return {name: _recording(name, **table) for name, table in read_tables("recorded").items()}


def _recording(name: str, right: str, confidence: str) -> Recording:
    pairs = zip(confidence[::2], confidence[1::2], strict=True)
    return Recording(
        name,
        tuple(int(digit) for digit in right),
        tuple(int(tens + ones) / _FULL for tens, ones in pairs),
    )
