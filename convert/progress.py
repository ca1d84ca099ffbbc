"""Progress reports of a conversion. This module must not know how they are displayed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ConversionPhase = Literal["plan", "calibrate", "write", "shard", "files", "check", "publish"]


@dataclass(frozen=True)
class ConversionProgress:
    """One report: `done` of `total`, in source bytes for "write" and "check", else in steps."""

    phase: ConversionPhase
    done: int
    total: int
    detail: str = ""


ProgressCallback = Callable[[ConversionProgress], None]
"""Called from worker threads; it must return quickly."""


def ignore_progress(_: ConversionProgress) -> None:
    """Discard the report."""
