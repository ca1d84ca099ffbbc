"""Counters over rounds, and the one definition of each.

acceptance = accepted / drafted draft tokens; tokens_per_round = committed tokens / rounds. Both
are printed with their names, since other conventions are in use that read alike.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_mlx.decode.round import Round


@dataclass(frozen=True)
class Stats:
    """What one request did. Times are in seconds, rates in tokens per second.

    `accepted_lengths[n]` counts the rounds in which n draft tokens were accepted;
    `accepted_by_position[i]` is the share of rounds in which draft token i was accepted, of the
    `drafted_by_position[i]` rounds that drafted it, those left out in which the answer ended
    before it. `draft_s` is the draft's part of `decode_s`, in the proportion seen in the rounds
    that timed it apart, and `verify_s` the rest, plain steps included; None where no round did.
    `disabled_at` is the token at which drafting stopped for the last time, None if it went on to
    the end. `host_reads` counts how often decoding waited for the device.
    `peak_memory_bytes` is the most that MLX held since a model was last loaded.
    """

    rounds: int
    drafted: int
    accepted: int
    acceptance: float | None
    tokens_per_round: float | None
    accepted_lengths: Mapping[int, int]
    accepted_by_position: tuple[float, ...]
    drafted_by_position: tuple[int, ...]
    prefill_s: float
    decode_s: float
    prefill_tps: float | None
    decode_tps: float | None
    draft_s: float | None
    verify_s: float | None
    host_reads: int
    block_size: int
    path: str
    disabled_at: int | None
    reason: str | None
    peak_memory_bytes: int
    blas: str


@dataclass
class Meter:
    """Collects the rounds of one request."""

    rounds: int = 0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    host_reads: int = 0
    decode_s: float = 0.0
    drafted_s: float = 0.0
    timed_s: float = 0.0
    timed_draft_s: float = 0.0
    lengths: Counter[int] = field(default_factory=Counter)
    tried: Counter[int] = field(default_factory=Counter)
    hits: Counter[int] = field(default_factory=Counter)
    disabled_at: int | None = None
    reason: str | None = None

    def add(self, done: Round) -> None:
        """Count one round."""
        self.rounds += 1
        self.committed += len(done.tokens)
        self.decode_s += done.seconds
        self.drafted += done.drafted
        self.accepted += done.accepted
        self.host_reads += 1 if done.draft_s is None else 2  # timing a draft waits for it
        if done.draft_s is not None:
            self.timed_s += done.seconds
            self.timed_draft_s += done.draft_s
        if done.drafted:
            self.drafted_s += done.seconds
            self.lengths[done.accepted] += 1
            self.tried.update(range(done.judged))
            self.hits.update(range(done.accepted))

    def park(self, reason: str | None, n_tokens: int) -> None:
        """Note whether drafting is stopped behind `n_tokens` tokens, and why."""
        if reason is None:
            self.disabled_at = None
        elif self.disabled_at is None:
            self.disabled_at = n_tokens
        self.reason = reason

    @property
    def draft_s(self) -> float | None:
        """Seconds spent drafting, reckoned from the rounds that timed it; None where none did."""
        return self.drafted_s * self.timed_draft_s / self.timed_s if self.timed_s else None

    def by_position(self) -> tuple[float, ...]:
        """Share of rounds that accepted draft token i, of those that drafted it."""
        return shares(self.hits, self.tried)

    def tried_by_position(self) -> tuple[int, ...]:
        """Rounds that drafted token i."""
        return tuple(self.tried[i] for i in sorted(self.tried))


def shares(hits: Counter[int], tried: Counter[int]) -> tuple[float, ...]:
    """Return by position what part of the rounds that drafted a token accepted it."""
    return tuple(hits[i] / tried[i] for i in sorted(tried))


def rate(amount: int, seconds: float) -> float | None:
    """Return `amount` per second, None where nothing was timed."""
    return amount / seconds if amount and seconds > 0 else None
