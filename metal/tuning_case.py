"""A tuning case: one kernel at one shape, to be checked and timed against stock MLX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import mlx.core as mx

Geometry = TypeVar("Geometry", bound=Any)


@dataclass(frozen=True)
class TuningCase(Generic[Geometry]):
    """One kernel at one shape. `candidates` are dataclasses of ints, best guess first.

    `check` compares one candidate with the reference and returns what is wrong, or None.
    `ours` and `stock` build chains of the given number of steps. Each step depends on the one
    before, so steps cannot overlap. The weights change from step to step, so they do not stay
    in a cache that a whole model would overflow.
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
        """The name under which the result is stored; it changes with the kernel source."""
        return f"{self.kernel} {self.source_hash} {self.shape}"
