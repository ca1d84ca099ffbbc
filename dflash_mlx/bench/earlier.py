"""Reads the JSON of an earlier `bench --json` and compares it with a new run.

It must not know how a run is measured.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.bench.summary import BenchReport, Spread
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.foreign import quoted, reading

_FACTS = ("chip", "device", "blas")
_REMEDY = "--compare needs the output of an earlier --json"


@dataclass(frozen=True)
class EarlierRun:
    """The part of an earlier run that is compared: machine, and throughput by (arm, kind)."""

    created_at: str
    mlx: str
    model: str
    facts: Mapping[str, str]
    throughput: Mapping[tuple[str, str], Spread]
    interrupted_reason: str | None = None


def read_earlier(file: Path) -> EarlierRun:
    """Return the run that `file` contains.

    Raises:
        BadRequest: the file cannot be read, or is not a report of this program.
    """
    with reading(file, "the earlier run", _REMEDY, BadRequest):
        values = json.loads(file.read_text(encoding="utf-8"))
        machine, reason = values["machine"], values.get("interrupted_reason")
        return EarlierRun(
            created_at=_text(values["created_at"]),
            mlx=_text(machine["mlx"]),
            model=_text(values["pair"]["model"]),
            facts={fact: _text(machine[fact]) for fact in _FACTS},
            interrupted_reason=None if reason is None else _text(reason),
            throughput={
                (_text(row["arm"]), _text(row["kind"])): _spread(row["throughput"])
                for row in values["figures"]
            },
        )


def side_by_side(old: EarlierRun, new: BenchReport) -> Iterator[str]:
    """Yield the lines of a table that compares an earlier run with this one."""
    incomplete = f", {old.interrupted_reason}: incomplete" if old.interrupted_reason else ""
    yield f"before: {old.created_at}, mlx {old.mlx}, {old.model}{incomplete}"
    yield f"now:    {new.created_at}, mlx {new.machine['mlx']}, {new.pair['model']}"
    for fact, before in old.facts.items():
        if before != new.machine[fact]:
            yield f"different {fact}: {before} before, {new.machine[fact]} now"
    yield f"{'kind':24} {'arm':9} {'before':>10} {'now':>10} {'change':>8}  (tokens/s)"
    for figure in new.figures:
        then = old.throughput.get((figure.arm, figure.kind))
        if then is None:
            continue
        now = figure.throughput.median
        within = "  (within the quartiles)" if then.low <= now <= then.high else ""
        yield (
            f"{figure.kind:24} {figure.arm:9} {then.median:10.1f} {now:10.1f} "
            f"{now / then.median - 1:+8.1%}{within}"
        )


def _text(value: Any) -> str:
    """Return a text in one line; a terminal must not interpret what a file contains."""
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not a text")
    return "".join(letter if letter.isprintable() else "?" for letter in value)


def _spread(values: Mapping[str, Any]) -> Spread:
    median, low, high = (float(values[name]) for name in ("median", "low", "high"))
    if not all(math.isfinite(number) and number > 0 for number in (median, low, high)):
        raise ValueError(f"a throughput of {quoted(dict(values))} tokens/s")
    return Spread(median, low, high, count=int(values["count"]))
