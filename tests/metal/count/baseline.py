"""The stored counts: what changed since, and whether a recount agrees."""

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
# Entries that a check recounts at most, so that a reworded kernel does not cost minutes.
CHANGED, UNCHANGED = 12, 4


@dataclass(frozen=True)
class Counted:
    """An entry's counts, `watched`: bytes of weights or cache read, each once per threadgroup."""

    fingerprint: str
    launches: int
    threadgroups: int
    barriers: int
    multiplies: int
    unique_bytes: int
    group_bytes: int
    watched: int

    def agrees(self, other: Counted | None) -> bool:
        """True when all numbers are the same, whatever the source looks like."""
        return other is not None and replace(other, fingerprint=self.fingerprint) == self


def recount(entry: Entry, objects: Objects) -> Counted:
    """Counts of an entry, made now."""
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
    """Stored counts by entry key."""
    if not PATH.exists():
        return {}
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    return {key: Counted(**value) for key, value in stored["entries"].items()}


def save(counted: dict[str, Counted]) -> None:
    """Store counts, with the MLX version that the stock kernels came from."""
    stored: dict[str, Any] = {
        "mlx": version("mlx"),
        "entries": {key: asdict(value) for key, value in counted.items()},
    }
    PATH.write_text(json.dumps(stored, indent=0) + "\n", encoding="utf-8")


def stored_mlx() -> str:
    """The MLX version that the stored counts of stock kernels belong to."""
    return str(json.loads(PATH.read_text(encoding="utf-8"))["mlx"])


def changed(every: Sequence[Entry], stored: dict[str, Counted]) -> list[Entry]:
    """Entries whose source, shape or geometry differs from what was counted.

    Stock kernels of another MLX version are left out: their counts belong to the stored one.
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
    """What a check recounts: changed entries, and a few unchanged ones; always the same draw.

    An entry that was never counted is always among them.
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
