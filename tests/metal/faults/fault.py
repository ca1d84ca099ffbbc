"""A planted fault: one named change of a kernel's text."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_mlx.metal.build import Kernel


class StaleFault(Exception):
    """The text that a fault changes is not there once; the fault must be written anew."""


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
        """Kernel and name."""
        return f"{self.kernel}: {self.name}"

    def shows_in(self, case: Mapping[str, Any]) -> bool:
        """True when the case has the axis values that the fault needs."""
        return all(case.get(axis) == value for axis, value in self.where.items())

    def plant(self, kernel: Kernel) -> Kernel | None:
        """The kernel with the fault, or None when the text is in another kernel of the launch."""
        count = kernel.header.count(self.old) + kernel.body.count(self.old)
        if count == 0:
            return None
        if count > 1:
            raise StaleFault(f"{self.id}: {self.old!r} is {count} times in {kernel.name}")
        return replace(
            kernel,
            name=f"{kernel.name}_fault",
            header=kernel.header.replace(self.old, self.new),
            body=kernel.body.replace(self.old, self.new),
        )


def read_faults() -> tuple[Fault, ...]:
    """All faults, from the `<kernel>.toml` files beside this one."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
            where = {axis: _plain(value) for axis, value in entry.pop("where", {}).items()}
            found.append(Fault(path.stem, **entry, where=where))
    return tuple(found)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
