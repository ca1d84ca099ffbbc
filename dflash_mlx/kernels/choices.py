"""The geometries that autotuning selected, looked up by number of rows and of keys.

Layers of one shape share one object. It changes between requests only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from dflash_mlx.metal.attention_geometry import AttentionGeometry

Geometry = TypeVar("Geometry", bound=Any)

TUNED_KEYS: Final = (1024, 4096)
"""Numbers of keys at which attention is tuned. Below the first, stock attention is a small
share of a round (docs/kernels.md, counted work)."""


@dataclass
class Choices(Generic[Geometry]):
    """The geometry to launch per number of rows; a number without one uses stock MLX."""

    geometries: dict[int, Geometry] = field(default_factory=dict)

    def select(self, rows: range, geometry: Geometry | None) -> None:
        """Use `geometry` for every number of rows in `rows`; None selects stock MLX."""
        changed = dict(self.geometries)
        for count in rows:
            if geometry is None:
                changed.pop(count, None)
            else:
                changed[count] = geometry
        self.geometries = changed  # a new object: layers compare it with the one they know

    def at(self, rows: int) -> Geometry | None:
        """Return the geometry for `rows` rows, or None for stock MLX."""
        return self.geometries.get(rows)


class AttentionChoices:
    """Choices by number of rows for each range of context lengths that starts at one of `keys`."""

    def __init__(self, keys: Sequence[int] = TUNED_KEYS) -> None:
        self.by_keys: dict[int, Choices[AttentionGeometry]] = {
            least: Choices() for least in sorted(keys, reverse=True)
        }

    def ranges(self) -> list[tuple[range, Choices[AttentionGeometry]]]:
        """Return the ranges of keys with the choices that hold in each.

        The last range has no end; it is represented by its numbers up to twice its first.
        """
        firsts = sorted(self.by_keys)
        ends = [*firsts[1:], 2 * firsts[-1] + 1] if firsts else []
        return [
            (range(first, end), self.by_keys[first])
            for first, end in zip(firsts, ends, strict=True)
        ]

    def at(self, rows: int, keys: int) -> AttentionGeometry | None:
        """Return the geometry for `rows` rows over `keys` keys, or None for stock MLX."""
        for least, choices in self.by_keys.items():
            if keys >= least:
                return choices.at(rows)
        return None
