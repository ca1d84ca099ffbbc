"""Counters over the rounds of a request, and the definition of each figure.

acceptance = accepted / drafted draft tokens; tokens_per_round = committed tokens / rounds. Other
definitions under the same names are in use elsewhere. It must not know requests or text.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_mlx.decode.round import Round
from dflash_mlx.models.protocols import DRAFT


@dataclass(frozen=True)
class SourceStats:
    """Figures of the rounds whose draft tokens came from one source.

    Args:
        rounds: rounds that verified draft tokens of this source.
        drafted: draft tokens proposed.
        accepted: draft tokens accepted.
        seconds: time of these rounds.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Stats:
    """Figures of one request. Times are in seconds, rates in tokens per second.

    Args:
        rounds: rounds of decoding, plain steps included.
        drafted: draft tokens proposed.
        accepted: draft tokens accepted.
        acceptance: accepted / drafted; None if nothing was drafted.
        tokens_per_round: committed tokens / rounds; None without rounds.
        accepted_lengths: number of rounds by number of accepted draft tokens.
        accepted_by_position: share of rounds that accepted draft token i, of the rounds that
            drafted it and in which the answer did not end before it.
        drafted_by_position: number of those rounds.
        prefill_s: time to read the prompt tokens that were not cached.
        decode_s: time to decode.
        prefill_tps: prompt tokens read per second.
        decode_tps: committed tokens per second of decoding.
        draft_s: the draft's share of `decode_s`, extrapolated from the rounds that timed the
            draft; None if no round did.
        verify_s: `decode_s` without `draft_s`.
        host_reads: how often decoding waited for the device.
        block_size: largest number of tokens verified per round.
        path: "dflash", or "plain" if the block size is 1.
        disabled_at: answer token at which drafting was disabled for the last time; None if it
            was enabled at the end.
        reason: why drafting was disabled.
        peak_memory_bytes: MLX's peak memory since a model was last loaded.
        blas: the BLAS library in use.
        sources: figures by source of draft tokens: "draft" is the draft model, "copy" the context,
            "prediction" the predicted answer. `accepted_lengths` and the figures by position are
            those of the draft model.

    Examples:
        >>> stats = engine.generate("Say hello.", short).stats
        >>> stats.rounds >= 1 and stats.accepted <= stats.drafted
        True
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
    sources: Mapping[str, SourceStats] = field(default_factory=dict)


@dataclass
class RoundCounters:
    """Counts the rounds of one request."""

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
    disabled_reason: str | None = None
    sources: dict[str, SourceStats] = field(default_factory=dict)

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
            self._add_source(done)
        if done.drafted and done.source == DRAFT:
            self.drafted_s += done.seconds
            self.lengths[done.accepted] += 1
            self.tried.update(range(done.n_counted))
            self.hits.update(range(done.accepted))

    def _add_source(self, done: Round) -> None:
        before = self.sources.get(done.source, SourceStats())
        self.sources[done.source] = SourceStats(
            before.rounds + 1,
            before.drafted + done.drafted,
            before.accepted + done.accepted,
            before.seconds + done.seconds,
        )

    def set_disabled(self, reason: str | None, n_tokens: int) -> None:
        """Record why drafting is disabled after `n_tokens` answer tokens; None if it is not."""
        if reason is None:
            self.disabled_at = None
        elif self.disabled_at is None:
            self.disabled_at = n_tokens
        self.disabled_reason = reason

    @property
    def draft_s(self) -> float | None:
        """Seconds spent drafting, extrapolated from the rounds that timed it; None if none did."""
        return self.drafted_s * self.timed_draft_s / self.timed_s if self.timed_s else None

    def accepted_by_position(self) -> tuple[float, ...]:
        """Return the share of rounds that accepted draft token i, of those that drafted it."""
        return acceptance_by_position(self.hits, self.tried)

    def drafted_by_position(self) -> tuple[int, ...]:
        """Return the number of rounds that drafted token i."""
        return tuple(self.tried[i] for i in sorted(self.tried))


def acceptance_by_position(hits: Counter[int], tried: Counter[int]) -> tuple[float, ...]:
    """Return, by position, the share of the rounds that drafted a token which accepted it."""
    return tuple(hits[i] / tried[i] for i in sorted(tried))


def rate(amount: int, seconds: float) -> float | None:
    """Return `amount` per second; None if nothing was timed."""
    return amount / seconds if amount and seconds > 0 else None
