"""An earlier run, read back from the JSON that `bench --json` prints, beside a new one."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.bench.summary import Report, Spread
from dflash_mlx.errors import BadRequest

_FACTS = ("chip", "device", "blas")


@dataclass(frozen=True)
class Earlier:
    """What of an earlier run is compared: its machine and its speeds by (arm, kind)."""

    made: str
    mlx: str
    model: str
    facts: Mapping[str, str]
    speeds: Mapping[tuple[str, str], Spread]
    broken_off: str | None = None


def read_earlier(file: Path) -> Earlier:
    """Return the run that `file` holds.

    Raises:
        BadRequest: it cannot be read, or is no report of this program.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"{file} cannot be read ({error}); --compare needs a --json") from error
    try:
        machine = values["machine"]
        return Earlier(
            made=values["made"],
            mlx=machine["mlx"],
            model=values["pair"]["model"],
            facts={fact: machine[fact] for fact in _FACTS},
            broken_off=values.get("broken_off"),
            speeds={(row["arm"], row["kind"]): _spread(row["speed"]) for row in values["figures"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(
            f"{file} is no report of this program (its {error}); --compare needs a --json of it"
        ) from error


def side_by_side(old: Earlier, new: Report) -> Iterator[str]:
    """Yield what changed from an earlier run to this one, line by line."""
    part = f", {old.broken_off}: a part of the run" if old.broken_off else ""
    yield f"before: {old.made}, mlx {old.mlx}, {old.model}{part}"
    yield f"now:    {new.made}, mlx {new.machine['mlx']}, {new.pair['model']}"
    for fact, before in old.facts.items():
        if before != new.machine[fact]:
            yield f"not the same {fact}: {before} before, {new.machine[fact]} now"
    yield f"{'kind':24} {'arm':9} {'before':>10} {'now':>10} {'change':>8}"
    for figure in new.figures:
        then = old.speeds.get((figure.arm, figure.kind))
        if then is None:
            continue
        now = figure.speed.median
        inside = "  (inside the spread)" if then.low <= now <= then.high else ""
        yield (
            f"{figure.kind:24} {figure.arm:9} {then.median:10.1f} {now:10.1f} "
            f"{now / then.median - 1:+8.1%}{inside}"
        )


def _spread(values: Mapping[str, float]) -> Spread:
    found = Spread(
        median=float(values["median"]),
        low=float(values["low"]),
        high=float(values["high"]),
        count=int(values["count"]),
    )
    if found.median <= 0:
        raise ValueError(f"speed of {found.median} tokens/s")
    return found
