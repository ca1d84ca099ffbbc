"""How far a conversion has come, told to whoever wants to show it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["plan", "calibrate", "write", "shard", "files", "check", "publish"]


@dataclass(frozen=True)
class ConversionProgress:
    """One report: `done` of `total`, bytes while writing and checking, else steps."""

    phase: Phase
    done: int
    total: int
    detail: str = ""


ProgressCallback = Callable[[ConversionProgress], None]
"""Called from whichever thread got further; it must be quick."""


def ignore_progress(_: ConversionProgress) -> None:
    """Nobody wants to know."""
