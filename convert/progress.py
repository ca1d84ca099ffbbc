"""How far a conversion has come, told to whoever wants to show it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["plan", "calibrate", "write", "shard", "files", "check", "publish"]


@dataclass(frozen=True)
class Progress:
    """One report: `done` of `total`, bytes while writing and checking, else steps."""

    phase: Phase
    done: int
    total: int
    detail: str = ""


Watcher = Callable[[Progress], None]
"""Called from whichever thread got further; it must be quick."""


def unwatched(_: Progress) -> None:
    """Nobody wants to know."""
