"""A fault: one named change of a kernel source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_mlx.metal.build import Kernel


class StaleFault(Exception):
    """The text that a fault replaces does not occur exactly once; the fault must be rewritten."""


@dataclass(frozen=True)
class Fault:
    """Replaces `old` by `new` in the kernels that the tests of `kernel` launch.

    where: only cases with these axis values can show the fault, for example {"window": 24}.
    test: a test of the module, taking devices only, to try before its cases.
    """

    kernel: str
    name: str
    old: str
    new: str
    where: Mapping[str, Any] = field(default_factory=dict)
    test: str = ""

    @property
    def id(self) -> str:
        """The kernel and the name of the fault."""
        return f"{self.kernel}: {self.name}"

    def shows_in(self, case: Mapping[str, Any]) -> bool:
        """Whether the case has the axis values that the fault needs."""
        return all(case.get(axis) == value for axis, value in self.where.items())

    def plant(self, kernel: Kernel) -> Kernel | None:
        """Return the kernel with the fault, or None when another kernel contains the text."""
        count = kernel.header.count(self.old) + kernel.body.count(self.old)
        if count == 0:
            return None
        if count > 1:
            raise StaleFault(f"{self.id}: {self.old!r} occurs {count} times in {kernel.name}")
        return replace(
            kernel,
            name=f"{kernel.name}_fault",
            header=kernel.header.replace(self.old, self.new),
            body=kernel.body.replace(self.old, self.new),
        )


def read_faults() -> tuple[Fault, ...]:
    """Return all faults of the `<kernel>.toml` files in this folder."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
            where = {axis: _plain(value) for axis, value in entry.pop("where", {}).items()}
            found.append(Fault(path.stem, **entry, where=where))
    return tuple(found)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
