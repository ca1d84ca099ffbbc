"""Findings about the precision of a known pair on this or another machine, computed from bytes.

It must not download, load or convert anything.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

from dflash_mlx.config import PairCard
from dflash_mlx.doctor.checkup import Finding
from dflash_mlx.hub.download import spelled_bytes
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.precision import (
    PrecisionConfig,
    PrecisionDecision,
    PrecisionRefusal,
    decide,
)
from dflash_mlx.pairs.shapes import facts_of, shapes
from dflash_mlx.system.chips import AppleChip

_BUILD_SUFFIXES = {
    4: ("4bit", "mxfp4"),
    8: ("8bit", "mxfp8"),
    16: ("bf16",),
    5: ("5bit",),
    6: ("6bit",),
}
"""How repositories of quantized builds end their names."""


def precision_of(
    card: PairCard, chip: AppleChip | None, usable_bytes: int, config: PrecisionConfig
) -> PrecisionDecision | PrecisionRefusal:
    """Return the precision of a known pair, or why there is none; see `pairs.precision.decide`.

    If no change of the options helps, the largest pair that fits is named.
    """
    facts = facts_of(card, shapes().get(card.nickname))
    if isinstance(facts, str):
        return PrecisionRefusal(
            f"not computed: {facts}; doctor reads it from a downloaded pair", undecided=True
        )
    found = decide(facts, chip, usable_bytes, config)
    if isinstance(found, PrecisionDecision) or found.remedies:
        return found
    other = largest_that_fits(chip, usable_bytes)
    if other is None:
        return found
    return PrecisionRefusal(found.reason, (f"--model {other.nickname}",))


@cache
def largest_that_fits(chip: AppleChip | None, usable_bytes: int) -> PairCard | None:
    """Return the known pair with the largest target that fits; None if none does."""
    best: tuple[int, PairCard] | None = None
    for card in registry.cards():
        facts = facts_of(card, shapes().get(card.nickname))
        if isinstance(facts, str):
            continue
        found = decide(facts, chip, usable_bytes, PrecisionConfig())
        size = facts.target_bytes(facts.published_bits)
        if isinstance(found, PrecisionDecision) and (best is None or size > best[0]):
            best = (size, card)
    return best[1] if best else None


def check_precision(
    card: PairCard,
    chip: AppleChip | None,
    usable_bytes: int,
    config: PrecisionConfig,
    facts: dict[str, Any],
) -> Iterator[Finding]:
    """Yield the chosen precision, its computed speed and where to get it; fill in `facts`."""
    found = precision_of(card, chip, usable_bytes, config)
    facts["precision"] = asdict(found)
    if isinstance(found, PrecisionRefusal):
        remedy = "; or ".join(found.remedies) or None
        yield Finding("precision", "must" if remedy else "advice", found.reason, remedy)
        return
    yield Finding("precision", "ok", describe_precision(found, usable_bytes))
    yield Finding("longest context", "ok", f"{found.longest_context} tokens fit")
    if chip is not None:
        yield Finding("speed", "ok", describe_speed(card, found, chip))
    yield Finding("source", "ok", "; ".join(_sources(card, found)))


def describe_pair(
    card: PairCard, chip: AppleChip | None, usable_bytes: int, config: PrecisionConfig
) -> str:
    """Return the precision of a pair, or its refusal, in one short line."""
    found = precision_of(card, chip, usable_bytes, config)
    if isinstance(found, PrecisionRefusal):
        remedy = f"; try {' or '.join(found.remedies)}" if found.remedies else ""
        answer = found.reason if found.undecided else f"does not fit: {found.reason}"
        return f"{card.nickname:22} {answer}{remedy}"
    speed = ""
    if found.speedup is not None:
        speed = f", computed speedup {found.speedup[0]:.1f} to {found.speedup[1]:.1f}"
    return (
        f"{card.nickname:22} {found.bits} bits, draft {found.draft_bits} bits, "
        f"{spelled_bytes(found.total_bytes)} with {found.context} tokens, at most "
        f"{found.longest_context} tokens{speed}"
    )


def describe_precision(found: PrecisionDecision, usable_bytes: int) -> str:
    """Return the precision with the bytes of its parts in one line."""
    return (
        f"target {found.bits} bits ({spelled_bytes(found.target_bytes)}), draft "
        f"{found.draft_bits} bits ({spelled_bytes(found.draft_bytes)}), caches "
        f"{spelled_bytes(found.cache_bytes)} for {found.context} tokens, working memory "
        f"{spelled_bytes(found.working_bytes)}: {spelled_bytes(found.total_bytes)} of "
        f"{spelled_bytes(usable_bytes)} usable; override with --bits, --draft-bits, --context"
    )


def describe_speed(card: PairCard, found: PrecisionDecision, chip: AppleChip) -> str:
    """Return the computed bounds of throughput and speedup in one line, marked as computed."""
    text = (
        f"computed, not measured: plain decoding at most {found.plain_tokens_per_s:.0f} tokens/s "
        f"({chip.bandwidth / 1e9:.0f} GB/s)"
    )
    if found.speedup is None:
        return f"{text}; no tokens per round are published for this pair"
    low, high = found.speedup
    shape = shapes()[card.nickname]
    return (
        f"{text}, times tau/(v+d) = {low:.1f} to {high:.1f} at block size {card.block_size} (tau "
        f"{shape.tokens_per_round[0]:g} to {shape.tokens_per_round[1]:g}: {shape.tokens_source})"
        if shape.tokens_per_round
        else text
    )


def build_with_bits(card: PairCard, bits: int) -> str | None:
    """Return the published repository of a card's target with `bits` bits; None without one."""
    published = shapes()[card.nickname].published_bits if card.nickname in shapes() else None
    if bits == 16 or bits == published:
        return card.target
    ending = _BUILD_SUFFIXES[bits]
    return next((name for name in card.targets if name.casefold().endswith(ending)), None)


def _sources(card: PairCard, found: PrecisionDecision) -> Iterator[str]:
    build = build_with_bits(card, found.bits)
    if build is not None:
        yield f"target: --model {card.nickname if build == card.target else build}"
    else:
        yield f"target: dflash-mlx convert {card.nickname} --bits {found.bits}"
    if found.draft_bits != 16:
        yield f"draft: dflash-mlx convert {card.draft} --bits {found.draft_bits}"
