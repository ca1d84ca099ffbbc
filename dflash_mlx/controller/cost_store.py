"""Stores what the controller learned of a pair on this machine: one JSON file per pair.

It must not know how costs are measured.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.controller.acceptance import AcceptanceCounts
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.system.foreign import quoted
from dflash_mlx.system.json_file import write_json
from dflash_mlx.system.state_file import read_state

_FORMAT = 3
"""Increased when the keys of the file change; costs in another format are measured again."""

_MAX_SECONDS = 1e6
"""Longest round in a valid file, in seconds: eleven days."""

_MAX_TOKENS = 2**31
"""Largest context length, and bound of all counts, in a valid file."""


@dataclass(frozen=True)
class CostKey:
    """Everything that costs depend on: the machine, the pair, its weights, and the software."""

    chip: str
    device: str
    model: str
    draft: str
    quantization: str
    blas: str
    mlx: str
    kernels: str = "stock"

    @property
    def name(self) -> str:
        """The file name. It does not depend on the version of MLX."""
        values = "\n".join(value for key, value in asdict(self).items() if key != "mlx")
        digest = hashlib.sha256(values.encode()).hexdigest()[:12]
        return f"{re.sub('[^A-Za-z0-9.-]+', '-', self.model)[-60:].strip('-')}-{digest}.json"


@dataclass(frozen=True)
class LearnedCosts:
    """Costs of rounds and the acceptance counts of earlier requests."""

    curve: CostCurve
    counts: AcceptanceCounts


class CostStore:
    """The files in `folder`, which is created when the first file is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: CostKey) -> tuple[LearnedCosts | None, str | None]:
        """Return the costs stored for `key`, or None and the reason they cannot be used.

        The reason is None where no file exists. A damaged file is set aside.
        """
        file = self.folder / key.name
        stored, notice = read_state(file, "the costs", _parse, "they are measured again")
        if stored is None:
            return None, notice
        if stored.key.mlx != key.mlx:
            reason = f"costs were measured with mlx {quoted(stored.key.mlx)}, not {key.mlx}"
            return None, f"{reason}; they are measured again"
        if stored.key != key:
            return None, f"{file}: the costs are of another pair; they are measured again"
        return stored.learned, None

    def save(self, key: CostKey, learned: LearnedCosts) -> str | None:
        """Store the costs for `key`; return the reason where that failed."""
        curve, counts = asdict(learned.curve), asdict(learned.counts)
        values = {"format": _FORMAT, "key": asdict(key), "curve": curve, "counts": counts}
        try:
            write_json(self.folder / key.name, values)
        except OSError as error:
            return f"costs cannot be written to {self.folder} ({error.strerror})"
        return None


@dataclass(frozen=True)
class _StoredCosts:
    key: CostKey
    learned: LearnedCosts


def _parse(values: Any) -> _StoredCosts:
    """Return the contents of a file; any exception means that it is damaged."""
    if values["format"] != _FORMAT:
        raise ValueError(f"format {quoted(values['format'])}, not {_FORMAT}")
    curve, counts = values["curve"], values["counts"]
    key = CostKey(**values["key"])
    if not all(isinstance(value, str) for value in asdict(key).values()):
        raise TypeError("a key of the pair is not a text")
    return _StoredCosts(
        key,
        LearnedCosts(
            CostCurve(
                block_sizes=tuple(_whole(size, 1) for size in curve["block_sizes"]),
                contexts=tuple(_whole(context, 0) for context in curve["contexts"]),
                seconds=tuple(tuple(map(_seconds, row)) for row in curve["seconds"]),
                context_token_s=_number(curve["context_token_s"], 0.0, _MAX_SECONDS),
            ),
            _counts(counts),
        ),
    )


def _counts(values: Mapping[str, Any]) -> AcceptanceCounts:
    n_drafted = tuple(_number(count, 0.0, _MAX_TOKENS) for count in values["n_drafted"])
    n_accepted = tuple(_number(count, 0.0, _MAX_TOKENS) for count in values["n_accepted"])
    if len(n_drafted) != len(n_accepted):
        raise ValueError(f"{len(n_drafted)} drafted and {len(n_accepted)} accepted positions")
    if any(a > d for d, a in zip(n_drafted, n_accepted, strict=True)):
        raise ValueError("more tokens were accepted than drafted")
    return AcceptanceCounts(n_drafted, n_accepted)


def _seconds(value: Any) -> float:
    return _number(value, 1e-9, _MAX_SECONDS)


def _number(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{quoted(value)} is not a number")
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{quoted(value)} is not between {low:g} and {high:g}")
    return float(value)


def _whole(value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{quoted(value)} is not a whole number")
    return int(_number(value, low, _MAX_TOKENS))
