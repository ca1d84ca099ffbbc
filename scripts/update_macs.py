"""Write docs/macs.md: the precision that is chosen for every known pair on every Mac.

python scripts/update_macs.py          # rewrite
python scripts/update_macs.py --check  # fail if the file is out of date
"""

import sys
from collections.abc import Callable
from pathlib import Path

from dflash_mlx.hub.builds import precision_of
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.pairs.precision import PrecisionConfig, PrecisionDecision, PrecisionRefusal
from dflash_mlx.system.chips import MacDescription, all_macs

PAGE = Path(__file__).resolve().parent.parent / "docs" / "macs.md"
INTRODUCTION = """# Which pair fits which Mac

Computed by `python scripts/update_macs.py`; nothing on this page was measured. The same answer for
one Mac: `dflash-mlx doctor --as "M2 16GB"`, for one pair with `--model NAME`.

Rules, in `dflash_mlx/pairs/precision.py`:

- **Memory.** Metal may use two thirds of the memory of Macs with up to 32 GB and three quarters of
  larger ones: the values of `recommendedMaxWorkingSetSize`. Weights, the caches of both models for
  8192 tokens, and 15% of both as working memory have to fit. Where they do not, 4096 and 2048
  tokens are tried.
- **Target.** 4 bits in groups of 64 (4.5 bits per weight) is the floor, and the fastest wherever
  reading weights is the limit. A higher precision is chosen if a round of the draft's block size
  takes at most 10% longer, because arithmetic is the limit there, and if plain decoding still
  reaches 20 tokens/s by bandwidth. Targets that are published in 4 bits stay as they are.
- **Draft.** 8 bits beside a quantized target, 4 where memory is short, 16 beside a 16-bit target.
- **Speedup** over plain decoding: tau / (v + d) at the draft's block size, for the lowest and the
  highest published tau. v is max(1, B / M*) with M* = bytes per weight x FLOPS / (2 x bandwidth), d
  the draft's bytes in bytes of a decode step. Smaller blocks, which are chosen by measurement, can
  be faster; models with experts read more of them for a block than for a token, which is not
  counted.

`chat`, `generate` and `bench` load the published build of the chosen precision, or the nearest one
that fits, with the published 16-bit draft: a draft in fewer bits has to be converted first.

Chips are in `dflash_mlx/system/chips.py` and shapes of pairs in `dflash_mlx/pairs/shapes.toml`,
with their sources. Caches of pairs marked * are an upper bound. "–": nothing fits.
"""

Cell = Callable[[PrecisionDecision], str]


def page() -> str:
    """Return the text of docs/macs.md."""
    cards = [card for card in registry.cards() if not _undecided(card)]
    others = [card.nickname for card in registry.cards() if _undecided(card)]
    tables = (
        ("Bits of target and draft", lambda found: f"{found.bits}/{found.draft_bits}"),
        ("Longest context, in thousands of tokens", lambda f: f"{f.longest_context / 1000:.0f}"),
        ("Computed speedup at the draft's block size", _speedup),
    )
    parts = [INTRODUCTION]
    parts += [f"## {title}\n\n{table(cards, cell)}\n" for title, cell in tables]
    names = ", ".join(f"`{name}`" for name in others)
    parts.append(f"Not computed, because a size or a shape is not recorded: {names}.\n")
    return "\n".join(parts)


def table(cards: list[PairCard], cell: Cell) -> str:
    """Return a table of Macs and pairs."""
    from dflash_mlx.pairs.shapes import shapes

    names = [card.nickname + "*" * shapes()[card.nickname].bound for card in cards]
    lines = [f"| Mac | {' | '.join(names)} |", "|---" * (len(cards) + 1) + "|"]
    for mac in all_macs():
        cells = [_answer(card, mac) for card in cards]
        values = [cell(found) if isinstance(found, PrecisionDecision) else "–" for found in cells]
        lines.append(f"| {mac.name} | {' | '.join(values)} |")
    return "\n".join(lines)


def _answer(card: PairCard, mac: MacDescription) -> PrecisionDecision | PrecisionRefusal:
    return precision_of(card, mac.chip, mac.usable_bytes, PrecisionConfig())


def _undecided(card: PairCard) -> bool:
    found = _answer(card, all_macs()[0])
    return isinstance(found, PrecisionRefusal) and found.undecided


def _speedup(found: PrecisionDecision) -> str:
    return "" if found.speedup is None else f"{found.speedup[0]:.1f}–{found.speedup[1]:.1f}"


def main() -> None:
    """Rewrite the page, or compare it with `--check`."""
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != made:
        raise SystemExit("docs/macs.md is out of date: python scripts/update_macs.py")


if __name__ == "__main__":
    main()
