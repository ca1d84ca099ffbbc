"""What the gate settled, where a layer looks it up: geometries by rows, and by keys.

Layers of one shape share one object. It is changed between requests only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from dflash_mlx.metal.attention_geometry import AttentionGeometry

Geometry = TypeVar("Geometry", bound=Any)

RACED_KEYS: Final = (1024, 4096)
"""Keys at which attention is raced; below the first of them MLX's own attention is short."""


@dataclass
class Choices(Generic[Geometry]):
    """Per number of rows, the geometry to launch; rows without one take the stock path."""

    geometries: dict[int, Geometry] = field(default_factory=dict)

    def settle(self, rows: range, geometry: Geometry | None) -> None:
        """Use `geometry` for every number of rows in `rows`; None is stock MLX."""
        for count in rows:
            if geometry is None:
                self.geometries.pop(count, None)
            else:
                self.geometries[count] = geometry

    def at(self, rows: int) -> Geometry | None:
        """The geometry for `rows` rows, or None."""
        return self.geometries.get(rows)


class AttentionChoices:
    """Choices by rows for contexts from each number of `keys` on, up to the next."""

    def __init__(self, keys: Sequence[int] = RACED_KEYS) -> None:
        self.by_keys: dict[int, Choices[AttentionGeometry]] = {
            least: Choices() for least in sorted(keys, reverse=True)
        }

    def at(self, rows: int, keys: int) -> AttentionGeometry | None:
        """The geometry for `rows` rows over `keys` keys, or None."""
        for least, choices in self.by_keys.items():
            if keys >= least:
                return choices.at(rows)
        return None
