"""The report of one round of the decode loop, and the stopwatch that times it.

This module must not know models, caches or policies.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dflash_mlx.models.protocols import DRAFT


@dataclass(frozen=True)
class Round:
    """One finished round: draft, verify, accept, commit."""

    tokens: tuple[int, ...]
    """Tokens committed: accepted draft tokens and the target's own token."""
    drafted: int
    """Draft tokens proposed; 0 is a plain step."""
    accepted: int
    """Draft tokens among `tokens`."""
    draft_is_finite: bool
    """Whether the draft's logits were finite."""
    seconds: float
    """Duration of the round without `caller_s`."""
    draft_s: float | None = None
    """Duration of the draft alone, where it was timed separately."""
    context_length: int = 0
    """Tokens in the target's cache before the round."""
    confidence: tuple[float, ...] = ()
    """For each of `tokens`: the probability of the target's best token if only that token and
    the second best were possible."""
    launched_early: bool = False
    """Whether the draft or plain step was launched before the caller received the last round."""
    caller_s: float = 0.0
    """Time that the caller spent on the last round's tokens before this round."""
    pipelined_next: bool = False
    """Whether the plain step after this one was launched before this round's token was read."""
    source: str = DRAFT
    """What proposed the draft tokens: the draft model, or the name of a text source."""

    @property
    def n_counted(self) -> int:
        """Draft tokens that count for the acceptance rate.

        Draft tokens after the end of the answer were neither accepted nor rejected.
        """
        return self.accepted if self.accepted == len(self.tokens) else self.drafted

    @property
    def measures_one_round(self) -> bool:
        """Whether `seconds` is the full cost of exactly one round.

        The first of several pipelined plain steps also starts the second one, and the last one
        finds its work already done. MLX blocks a launch while much work is queued; on a CPU the
        launch returns only when the queued work is almost finished.
        """
        return self.drafted > 0 or self.launched_early == self.pipelined_next

    @property
    def unpipelined(self) -> bool:
        """Whether this is a plain step that overlapped with no other step."""
        return self.drafted == 0 and not self.launched_early and not self.pipelined_next


class Stopwatch:
    """Times rounds without gaps: time outside the laps is in `caller_s`."""

    def __init__(self) -> None:
        self.caller_s = 0.0
        self._started = time.perf_counter()
        self._paused_s = 0.0

    def elapsed(self) -> float:
        """Return the seconds of the current lap so far."""
        return time.perf_counter() - self._started

    def lap(self) -> float:
        """End the current lap, start the next, and return the seconds of the ended one."""
        seconds = self.elapsed()
        self._started += seconds
        self.caller_s, self._paused_s = self._paused_s, 0.0
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in the context from the current lap."""
        stopped = time.perf_counter()
        yield
        self._paused_s = time.perf_counter() - stopped
        self._started += self._paused_s
