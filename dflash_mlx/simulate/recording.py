"""Recorded answers: how many draft tokens are accepted after every token (`data/recorded.toml`).

`benchmarks/record_acceptance.py` makes the file, with SmolLM2-135M and the embedded draft.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from dflash_mlx.simulate.tables import read_tables

_CONFIDENCE_SCALE = 99
"""Confidence 1 is stored as 99, so that every token takes two digits."""


@dataclass(frozen=True)
class Recording:
    """One answer: accepted draft tokens in a row, and the target's confidence, for each token."""

    name: str
    accepted: tuple[int, ...]
    confidence: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.accepted) == len(self.confidence), self.name


@cache
def recordings() -> Mapping[str, Recording]:
    """Return the recordings of the package, by name."""
    return {name: _recording(name, **table) for name, table in read_tables("recorded").items()}


def _recording(name: str, accepted: str, confidence: str) -> Recording:
    pairs = zip(confidence[::2], confidence[1::2], strict=True)
    return Recording(
        name,
        tuple(int(digit) for digit in accepted),
        tuple(int(tens + ones) / _CONFIDENCE_SCALE for tens, ones in pairs),
    )
