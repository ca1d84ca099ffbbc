"""Chooses the precision of target and draft for a machine: a pure function of facts.

It must not know files, devices or requests: the chip and the usable memory are arguments.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from dflash_mlx.errors import BadRequest
from dflash_mlx.pairs.shapes import PairFacts, weight_bytes
from dflash_mlx.system.chips import AppleChip
from dflash_mlx.system.machine import WORKING_SHARE

Bits = Literal["auto", 4, 5, 6, 8, 16]
DraftBits = Literal["auto", 4, 8, 16]

DEFAULT_CONTEXT = 8192
"""Tokens that the caches must have room for. Published acceptance falls beyond this length for
drafts that were not adapted to longer ones (DFlash paper, table 4)."""

_SHORTER_CONTEXTS = (4096, 2048)
"""Tried in this order if no precision fits with the default; below 2048 a chat has few turns."""

_WORTH = 1.1
"""A higher precision is chosen if a round takes at most this many times the fastest one's time: ten
percent is less than the speed differs between two prompts of one kind."""

_READABLE = 20.0
"""Tokens per second of plain decoding, by bandwidth, that a higher precision must keep: three times
the speed of reading (250 words a minute), for text on which the draft is seldom accepted."""

_MEMORY_EFFICIENCY = 0.85
"""Share of the specified bandwidth that kernels reach: 226 to 248 of 273 GB/s were measured on an
M4 Pro and 738 of 819 on an M3 Ultra."""

_ALU_EFFICIENCY = 0.7
"""Share of the arithmetic that matrix products reach; assumed, as for the verify kernels."""


@dataclass(frozen=True)
class PrecisionConfig:
    """What the user asks for; "auto" and None leave the choice to `decide`.

    Args:
        bits: bits per weight of the target; 16 is the original checkpoint.
        draft_bits: bits per weight of the draft.
        context: tokens that the caches must have room for; None tries 8192, then less.
    """

    bits: Bits = "auto"
    draft_bits: DraftBits = "auto"
    context: int | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("bits", self.bits, get_args(Bits)),
            ("draft_bits", self.draft_bits, get_args(DraftBits)),
        ):
            if value not in choices:
                allowed = ", ".join(map(str, choices))
                raise BadRequest(f"{name} is {value!r}; it needs one of {allowed}")
        if self.context is not None and self.context < 1:
            raise BadRequest(f"context is {self.context}; it needs a whole number > 0")


@dataclass(frozen=True)
class PrecisionDecision:
    """A precision that fits, with its bytes and its computed speed.

    Args:
        bits: bits per weight of the target.
        draft_bits: bits per weight of the draft.
        context: tokens that the decision has room for.
        target_bytes, draft_bytes: bytes of the weights.
        cache_bytes: bytes of both caches with `context` tokens.
        working_bytes: memory for activations and logits.
        longest_context: tokens that fit at most, up to the model's context length.
        plain_tokens_per_s: upper bound of plain decoding, from bandwidth and bytes per token.
        speedup: lowest and highest tau / (v + d) at the draft's block size; None without a
            published tau.
    """

    bits: int
    draft_bits: int
    context: int
    target_bytes: int
    draft_bytes: int
    cache_bytes: int
    working_bytes: int
    longest_context: int
    plain_tokens_per_s: float
    speedup: tuple[float, float] | None

    @property
    def total_bytes(self) -> int:
        """Return the bytes of weights, caches and working memory."""
        return self.target_bytes + self.draft_bytes + self.cache_bytes + self.working_bytes


@dataclass(frozen=True)
class PrecisionRefusal:
    """Why nothing fits, or (`undecided`) nothing is known, and the smallest change that helps."""

    reason: str
    remedies: tuple[str, ...] = ()
    undecided: bool = False


def decide(
    facts: PairFacts, chip: AppleChip | None, usable_bytes: int, config: PrecisionConfig
) -> PrecisionDecision | PrecisionRefusal:
    """Return the precision for a machine, or why none fits.

    4 bits is the floor and the fastest wherever reading weights is the limit. A higher precision
    that fits is chosen if it costs little: a round of the draft's block size takes at most `_WORTH`
    times as long as the fastest one's, because arithmetic is the limit there, and plain decoding
    reaches `_READABLE`. Without a known `chip` the lowest precision is chosen.
    """
    length = facts.shape.context_length
    if config.context is not None and config.context > length:
        return PrecisionRefusal(
            f"--context is {config.context} and the model's context length is {length}",
            (f"--context {length}",),
        )
    if facts.published_bytes is not None and config.bits not in ("auto", facts.published_bits):
        again = decide(facts, chip, usable_bytes, replace(config, bits="auto"))
        change = again.remedies if isinstance(again, PrecisionRefusal) else ("",)
        return PrecisionRefusal(
            f"--bits is {config.bits} and the target is published in {facts.published_bits} bits",
            tuple(f"--bits {facts.published_bits} {option}".strip() for option in change),
        )
    first = min(config.context or DEFAULT_CONTEXT, length)
    shorter = () if config.context else tuple(n for n in _SHORTER_CONTEXTS if n < first)
    for context in (first, *shorter):
        fitting = _fitting(facts, chip, usable_bytes, config, context)
        if fitting:
            fastest = min(_round_s(facts, chip, found) for found in fitting)
            worth = [
                found
                for found in fitting
                if _round_s(facts, chip, found) <= _WORTH * fastest
                and found.plain_tokens_per_s >= _READABLE
            ]
            return max(worth or [fitting[-1]], key=lambda found: found.bits)
    return _refusal(facts, chip, usable_bytes, config, first)


def _fitting(
    facts: PairFacts,
    chip: AppleChip | None,
    usable_bytes: int,
    config: PrecisionConfig,
    context: int,
) -> list[PrecisionDecision]:
    """Return one decision per precision of the target that fits, the draft's highest first."""
    found = []
    for bits in _target_choices(facts, config):
        for draft_bits in _draft_choices(bits, config):
            decision = _decision(facts, chip, usable_bytes, bits, draft_bits, context)
            if decision.total_bytes <= usable_bytes:
                found.append(decision)
                break
    return found


def _target_choices(facts: PairFacts, config: PrecisionConfig) -> tuple[int, ...]:
    if facts.published_bytes is not None:
        return (facts.published_bits,)
    return (16, 8, 6, 5, 4) if config.bits == "auto" else (config.bits,)


def _draft_choices(bits: int, config: PrecisionConfig) -> tuple[int, ...]:
    """Return the precisions of the draft to try.

    A draft of a quantized target is quantized: in 16 bits it costs as much as half of a 4-bit
    target. 8 bits come first because no loss of acceptance is published for them; 4 bits lose
    0 to 17% by source, and are used where memory is short.
    """
    if config.draft_bits != "auto":
        return (config.draft_bits,)
    return (16,) if bits == 16 else (8, 4)


def _decision(
    facts: PairFacts,
    chip: AppleChip | None,
    usable_bytes: int,
    bits: int,
    draft_bits: int,
    context: int,
) -> PrecisionDecision:
    target, draft = facts.target_bytes(bits), weight_bytes(facts.draft_parameters, draft_bits)
    caches = facts.shape.cache_bytes(context)
    decision = PrecisionDecision(
        bits,
        draft_bits,
        context,
        target,
        draft,
        caches,
        round((target + draft + caches) * WORKING_SHARE),
        _longest(facts, usable_bytes, target + draft),
        0.0,
        None,
    )
    if chip is None:
        return decision
    read = target * facts.active_share + caches
    return replace(
        decision,
        plain_tokens_per_s=chip.bandwidth / read,
        speedup=_speedup(facts, chip, decision),
    )


def _longest(facts: PairFacts, usable_bytes: int, held_bytes: int) -> int:
    """Return the most tokens for which weights, caches and working memory fit; 0 if none do."""
    low, high = 0, facts.shape.context_length
    while low < high:
        middle = (low + high + 1) // 2
        held = held_bytes + facts.shape.cache_bytes(middle)
        if held + round(held * WORKING_SHARE) <= usable_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _speedup(
    facts: PairFacts, chip: AppleChip, decision: PrecisionDecision
) -> tuple[float, float] | None:
    """Return tau / (v + d) for the published range of tau.

    v is a verification in decode steps: 1 up to M* rows, where arithmetic becomes the limit, then
    growing in proportion. A block of a model with experts reads more of them than a token, which
    is not counted. d is the draft's bytes in bytes of a decode step.
    """
    if facts.shape.tokens_per_round is None:
        return None
    target = decision.target_bytes * facts.active_share
    bytes_per_weight = decision.target_bytes / facts.n_weights
    rows = bytes_per_weight * chip.flops / (2 * chip.bandwidth)
    verify = 1.0 if facts.experts else max(1.0, facts.block_size / rows)
    draft = decision.draft_bytes / target
    low, high = facts.shape.tokens_per_round
    return low / (verify + draft), high / (verify + draft)


def _round_s(facts: PairFacts, chip: AppleChip | None, decision: PrecisionDecision) -> float:
    """Return the seconds of a round by the roofline; without a chip, in proportion to the bytes."""
    bandwidth = chip.bandwidth * _MEMORY_EFFICIENCY if chip else 1.0
    read = decision.target_bytes * facts.active_share / bandwidth
    draft = decision.draft_bytes / bandwidth
    if chip is None or facts.experts:
        return read + draft  # a block reads more experts than a token, so reading stays the limit
    flop = 2 * facts.n_weights * facts.block_size
    return max(read, flop / (chip.flops * _ALU_EFFICIENCY)) + draft


def _refusal(
    facts: PairFacts,
    chip: AppleChip | None,
    usable_bytes: int,
    config: PrecisionConfig,
    context: int,
) -> PrecisionRefusal:
    """Return the refusal with the changes that make the pair fit, the smallest first."""
    smallest = _decision(
        facts,
        chip,
        usable_bytes,
        _target_choices(facts, config)[-1],
        _draft_choices(4, config)[-1],
        context,
    )
    reason = (
        f"{smallest.bits} bits need {smallest.total_bytes / 1e9:.1f} GB with {context} tokens of "
        f"context, and {usable_bytes / 1e9:.1f} GB are usable"
    )
    changes = {
        "--draft-bits 4": replace(config, draft_bits=4),
        "--bits 4": replace(config, bits=4),
        "--bits 4 --draft-bits 4": replace(config, bits=4, draft_bits=4),
    }
    for option, change in changes.items():
        if change != config and _fitting(facts, chip, usable_bytes, change, context):
            return PrecisionRefusal(reason, (option,))
    if smallest.longest_context >= _SHORTER_CONTEXTS[-1] and config.context:
        return PrecisionRefusal(reason, (f"--context {smallest.longest_context}",))
    floor = replace(config, bits="auto", draft_bits="auto", context=None)
    if floor != config and not isinstance(
        decide(facts, chip, usable_bytes, floor), PrecisionRefusal
    ):
        return PrecisionRefusal(reason, ("--bits auto --draft-bits auto and a shorter --context",))
    return PrecisionRefusal(reason)
