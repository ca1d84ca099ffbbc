"""Findings about the precision of a known pair on this or another machine, computed from bytes.

It must not download, load or convert anything.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dflash_mlx.doctor.checkup import Finding
from dflash_mlx.hub.builds import build_with_bits, describe_precision, precision_of
from dflash_mlx.hub.download import spelled_bytes
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.pairs.precision import (
    PrecisionConfig,
    PrecisionDecision,
    PrecisionRefusal,
)
from dflash_mlx.pairs.shapes import shapes
from dflash_mlx.system.chips import AppleChip


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


def _sources(card: PairCard, found: PrecisionDecision) -> Iterator[str]:
    build = build_with_bits(card, found.bits)
    if build is not None:
        yield f"target: --model {card.nickname if build == card.target else build}"
    else:
        yield f"target: dflash-mlx convert {card.nickname} --bits {found.bits}"
    if found.draft_bits != 16:
        yield f"draft: dflash-mlx convert {card.draft} --bits {found.draft_bits}"
