"""The stored counts: which entries changed, and whether a recount agrees."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.metal.count.counter import count, fingerprint
from tests.metal.count.entries import Entry
from tests.metal.executor import Objects

PATH = Path(__file__).parent / "baseline.json"
# The most entries that a check recounts, so that an edited kernel does not take minutes.
CHANGED, UNCHANGED = 12, 4


@dataclass(frozen=True)
class Counted:
    """The counts of an entry. `watched`: bytes of weights or cache, once per threadgroup."""

    fingerprint: str
    launches: int
    threadgroups: int
    barriers: int
    multiplies: int
    unique_bytes: int
    group_bytes: int
    watched: int

    def agrees(self, other: Counted | None) -> bool:
        """Whether all counts are equal; fingerprints may differ."""
        return other is not None and replace(other, fingerprint=self.fingerprint) == self


def recount(entry: Entry, objects: Objects) -> Counted:
    """Return the counts of an entry, counted now."""
    work = count(entry.launches, objects, alike=entry.alike)
    return Counted(
        fingerprint(entry.launches),
        work.launches,
        work.threadgroups,
        work.barriers,
        work.multiplies,
        work.unique_bytes,
        sum(work.group_bytes.values()),
        sum(n for name, n in work.group_bytes.items() if name in entry.watched),
    )


def load() -> dict[str, Counted]:
    """Return the stored counts by entry key."""
    if not PATH.exists():
        return {}
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    return {key: Counted(**value) for key, value in stored["entries"].items()}


def save(counted: dict[str, Counted]) -> None:
    """Store counts with the MLX version of the stock kernels."""
    stored: dict[str, Any] = {
        "mlx": version("mlx"),
        "entries": {key: asdict(value) for key, value in counted.items()},
    }
    PATH.write_text(json.dumps(stored, indent=0) + "\n", encoding="utf-8")


def stored_mlx() -> str:
    """Return the MLX version of the stored counts of stock kernels."""
    return str(json.loads(PATH.read_text(encoding="utf-8"))["mlx"])


def changed(every: Sequence[Entry], stored: dict[str, Counted]) -> list[Entry]:
    """Return the entries whose source, shape or geometry differs from the stored one.

    Stock kernels of another MLX version are left out.
    """
    same_mlx = stored_mlx() == version("mlx") if PATH.exists() else True
    return [
        entry
        for entry in every
        if (same_mlx or not entry.stock)
        and (
            entry.key not in stored or stored[entry.key].fingerprint != fingerprint(entry.launches)
        )
    ]


def sample(every: Sequence[Entry], stale: Sequence[Entry]) -> list[Entry]:
    """Return a fixed sample of changed and unchanged entries for a check.

    It contains every entry without a stored count.
    """
    keys = {entry.key for entry in stale}
    fresh = [entry for entry in every if entry.key not in keys and not entry.stock]
    counted = load()
    new = [entry for entry in stale if entry.key not in counted]
    old = [entry for entry in stale if entry.key in counted]
    draw = random.Random(1)
    return [
        *new,
        *draw.sample(old, min(CHANGED, len(old))),
        *draw.sample(fresh, min(UNCHANGED, len(fresh))),
    ]
