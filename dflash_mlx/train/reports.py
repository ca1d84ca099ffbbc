"""What a run says while it works, for whoever shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["probe", "write", "train", "measure", "publish"]


@dataclass(frozen=True)
class Report:
    """So much of a phase is done; `detail` says it in words, `left_s` is the time it may take."""

    phase: Phase
    done: int
    total: int
    detail: str = ""
    left_s: float | None = None


@dataclass(frozen=True)
class Watcher:
    """Who is told, and who may ask a run to stop: it does so at the next step, nothing lost."""

    on_report: Callable[[Report], None] = lambda report: None
    stopped: Callable[[], bool] = lambda: False
