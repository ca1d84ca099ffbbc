"""What one round of the decode loop reports."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """One draft-verify-accept-commit.

    `tokens` were committed. `drafted` draft tokens were proposed (0: a plain step) and
    `accepted` of them are among `tokens`. `healthy` is False when the draft's logits were not
    finite. `seconds` is the whole round; `draft_s` the draft's share where it was timed apart.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    healthy: bool
    seconds: float
    draft_s: float | None = None
