"""One kernel at one shape, to be checked and timed against stock MLX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import mlx.core as mx

Geometry = TypeVar("Geometry", bound=Any)


@dataclass(frozen=True)
class TuningCase(Generic[Geometry]):
    """One kernel at one shape. `candidates` are dataclasses of ints, best guess first.

    `check` compares one candidate with the reference and returns what is wrong, or None.
    `ours` and `stock` build chains of that many steps, each depending on the one before, so
    that steps cannot overlap; the weights change from step to step, so that none stay in a
    cache that a model would have flushed.
    """

    kernel: str
    source_hash: str
    shape: str
    candidates: Sequence[Geometry]
    check: Callable[[Geometry], str | None]
    ours: Callable[[Geometry, int], mx.array]
    stock: Callable[[int], mx.array]

    @property
    def key(self) -> str:
        """Names the question; a changed kernel is another question."""
        return f"{self.kernel} {self.source_hash} {self.shape}"
