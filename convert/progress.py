"""Progress reports of a conversion. This module must not know how they are displayed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ConversionPhase = Literal[
    "plan", "calibrate", "download", "write", "shard", "files", "check", "publish"
]


@dataclass(frozen=True)
class ConversionProgress:
    """One report: `done` of `total`.

    Both are bytes of the source in the phases "download", "write" and "check", else steps.
    `bytes_per_s` is the throughput of the current download; `seconds_left` estimates the time
    until the end of download and conversion. Both are None where they are not known.
    """

    phase: ConversionPhase
    done: int
    total: int
    detail: str = ""
    bytes_per_s: float | None = None
    seconds_left: float | None = None


ProgressCallback = Callable[[ConversionProgress], None]
"""Called from worker threads; it must return quickly."""


def ignore_progress(_: ConversionProgress) -> None:
    """Discard the report."""
