"""Which published build of a known pair's target to load on a machine.

It must not download or load anything; whether a build is on this machine is an argument.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

from dflash_mlx.errors import BadRequest
from dflash_mlx.hub.download import spelled_bytes
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.card import PairCard
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


def choose_build(
    card: PairCard,
    chip: AppleChip | None,
    usable_bytes: int,
    config: PrecisionConfig,
    is_here: Callable[[str], bool],
) -> tuple[str, str] | None:
    """Return the published build of a target to load, with a line about the choice.

    A build that is on this machine and fits is used before another is downloaded. Published drafts
    have 16 bits. None if the sizes of the pair are not recorded.

    Raises:
        BadRequest: no build has the requested bits, or no build fits; the message has a remedy.
    """
    config = replace(config, draft_bits=16)
    found = precision_of(card, chip, usable_bytes, config)
    if isinstance(found, PrecisionRefusal) and found.undecided:
        return None
    builds = {bits: build for bits in (16, 8, 6, 5, 4) if (build := build_with_bits(card, bits))}
    if config.bits != "auto" and config.bits not in builds:
        raise BadRequest(
            f"--bits is {config.bits} and no build of {card.nickname} with {config.bits} bits is "
            f"published; make one with: dflash-mlx convert {card.nickname} --bits {config.bits}"
        )
    if isinstance(found, PrecisionRefusal):
        remedy = "; or ".join(found.remedies) or "use a machine with more memory"
        raise BadRequest(
            f"{card.nickname} does not fit: {found.reason}; {remedy}, or load it in spite of that "
            f"with --model {card.target}"
        )
    fitting = {}
    for bits in builds if config.bits == "auto" else (found.bits,):
        at_bits = precision_of(card, chip, usable_bytes, replace(config, bits=cast(Any, bits)))
        if isinstance(at_bits, PrecisionDecision) and at_bits.bits == bits:
            fitting[bits] = at_bits
    if not fitting:
        raise BadRequest(
            f"{card.nickname} fits at {found.bits} bits and no such build is published; make one "
            f"with: dflash-mlx convert {card.nickname} --bits {found.bits}"
        )
    here = [bits for bits in fitting if is_here(builds[bits])]
    bits = _nearest(found.bits, here or list(fitting))
    text = describe_precision(fitting[bits], usable_bytes)
    return builds[bits], f"{card.nickname}: {text}"


def build_with_bits(card: PairCard, bits: int) -> str | None:
    """Return the published repository of a card's target with `bits` bits; None without one."""
    shape = shapes().get(card.nickname)
    published = shape.published_bits if shape and shape.published_bits else 16
    if bits == published:
        return card.target
    if bits == 16:
        return None
    ending = _BUILD_SUFFIXES[bits]
    return next((name for name in card.targets if name.casefold().endswith(ending)), None)


def describe_precision(found: PrecisionDecision, usable_bytes: int) -> str:
    """Return the precision with the bytes of its parts in one line."""
    return (
        f"target {found.bits} bits ({spelled_bytes(found.target_bytes)}), draft "
        f"{found.draft_bits} bits ({spelled_bytes(found.draft_bytes)}), caches "
        f"{spelled_bytes(found.cache_bytes)} for {found.context} tokens, working memory "
        f"{spelled_bytes(found.working_bytes)}: {spelled_bytes(found.total_bytes)} of "
        f"{spelled_bytes(usable_bytes)} usable; override with --bits"
    )


def _nearest(wanted: int, available: list[int]) -> int:
    """Return the wanted bits if available, else the highest below them, else the lowest above."""
    below = [bits for bits in available if bits <= wanted]
    return max(below) if below else min(available)
