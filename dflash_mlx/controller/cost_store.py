"""Stores what the controller learned of a pair on this machine: one JSON file per pair.

It must not know how costs are measured.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.controller.acceptance import AcceptanceCounts
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.system.json_file import write_json

_FORMAT = 3
"""Raised when the keys of the file change; a file of another format is measured again."""


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

        The reason is None where no file exists.
        """
        file = self.folder / key.name
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if values["format"] != _FORMAT:
                return None, f"{file} has another format; costs are measured again"
            stored = values["key"]
            if stored != asdict(key):
                reason = f"costs were measured with mlx {stored['mlx']}, not {key.mlx}"
                return None, f"{reason}; they are measured again"
            return _learned(values), None
        except FileNotFoundError:
            return None, None
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            return None, f"{file} cannot be read ({error}); costs are measured again"

    def save(self, key: CostKey, learned: LearnedCosts) -> str | None:
        """Store the costs for `key`; return the reason where that failed."""
        curve, counts = asdict(learned.curve), asdict(learned.counts)
        values = {"format": _FORMAT, "key": asdict(key), "curve": curve, "counts": counts}
        try:
            write_json(self.folder / key.name, values)
        except OSError as error:
            return f"costs cannot be written to {self.folder} ({error.strerror})"
        return None


def _learned(values: Mapping[str, Any]) -> LearnedCosts:
    curve, counts = values["curve"], values["counts"]
    return LearnedCosts(
        CostCurve(
            block_sizes=tuple(int(size) for size in curve["block_sizes"]),
            contexts=tuple(int(context) for context in curve["contexts"]),
            seconds=tuple(tuple(float(cost) for cost in row) for row in curve["seconds"]),
            context_token_s=float(curve["context_token_s"]),
        ),
        AcceptanceCounts(
            tuple(float(count) for count in counts["n_drafted"]),
            tuple(float(count) for count in counts["n_accepted"]),
        ),
    )
