"""What one round of the decode loop reports."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """One draft-verify-accept-commit.

    `tokens` were committed, behind `context` rows. `drafted` draft tokens were proposed (0: a
    plain step) and `accepted` of them are among `tokens`. `healthy` is False when the draft's
    logits were not finite. `confidence` is the probability that the target's best token would have
    had beside the next best alone, at the row behind each of `tokens`.

    `seconds` is the whole round without the `caller_s` that the caller spent before it on the
    tokens of the last; `draft_s` is the draft's share where it was timed apart. A round was
    `launched_early` when its draft, or its plain step, was launched before the caller had the
    tokens of the round before. It
    `pipelined_next` when the plain step after it was launched before its own token was read.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    healthy: bool
    seconds: float
    draft_s: float | None = None
    context: int = 0
    confidence: tuple[float, ...] = ()
    launched_early: bool = False
    caller_s: float = 0.0
    pipelined_next: bool = False

    @property
    def judged(self) -> int:
        """Draft tokens found to be right or wrong; nobody asks behind the end of an answer."""
        return self.accepted if self.accepted == len(self.tokens) else self.drafted

    @property
    def whole(self) -> bool:
        """Whether `seconds` hold the work of one round, no more and no less.

        The first of a run of plain steps begins the second one's work, and the last finds its own
        done: MLX lets a launch wait while much is queued, on a CPU until it is nearly computed.
        """
        return self.drafted > 0 or self.launched_early == self.pipelined_next

    @property
    def unpipelined(self) -> bool:
        """Whether this is a plain step that waited for the host on both sides."""
        return self.drafted == 0 and not self.launched_early and not self.pipelined_next
