"""A tuning case: one kernel at one range of shapes, to be checked and timed against stock MLX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import mlx.core as mx

Geometry = TypeVar("Geometry", bound=Any)


@dataclass(frozen=True)
class TimedWork(Generic[Geometry]):
    """The same work for a candidate and for stock MLX, at one point of the range of a case.

    `ours` and `stock` build chains of the given number of steps. Each step depends on the one
    before, so steps cannot overlap. The weights change from step to step, so they do not stay
    in a cache that a whole model would overflow.
    """

    ours: Callable[[Geometry, int], mx.array]
    stock: Callable[[int], mx.array]


@dataclass(frozen=True)
class TuningCase(Generic[Geometry]):
    """One kernel at one range of shapes. `candidates` are dataclasses of ints, best guess first.

    All shapes of the range launch the same pipelines. `check` launches every pipeline of a
    candidate, compares the results with the reference and returns what is wrong, or None.
    `timed` holds the points at which stock MLX is fastest relative to the kernel: the ends of
    the range.
    """

    kernel: str
    source_hash: str
    shape: str
    candidates: Sequence[Geometry]
    check: Callable[[Geometry], str | None]
    timed: Sequence[TimedWork[Geometry]]

    @property
    def key(self) -> str:
        """The name under which the result is stored; it changes with the kernel source."""
        return f"{self.kernel} {self.source_hash} {self.shape}"
