"""What was learned of a pair on this machine, kept for the next time: one JSON file a pair.

A file speaks for one chip, one target and draft in one quantization, and one version of MLX;
anything else is measured again, and said.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.controller.acceptance import Start
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.system.json_file import write_json

_FORMAT = 2


@dataclass(frozen=True)
class CostKey:
    """Where costs were measured: everything that they depend on."""

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
        """The name of its file, the same for every version of MLX."""
        known = "\n".join(value for key, value in asdict(self).items() if key != "mlx")
        digest = hashlib.sha256(known.encode()).hexdigest()[:12]
        return f"{re.sub('[^A-Za-z0-9.-]+', '-', self.model)[-60:].strip('-')}-{digest}.json"


@dataclass(frozen=True)
class Learned:
    """What is kept: costs of rounds, and where the next request may start from."""

    curve: CostCurve
    start: Start


class CostStore:
    """The files, in `folder` (made when the first is written)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, place: CostKey) -> tuple[Learned | None, str | None]:
        """Return what was learned at `place`, or None with a word on why it cannot be used.

        There is no word where nothing was kept.
        """
        file = self.folder / place.name
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            kept = values["place"]
            if values["format"] != _FORMAT:
                return None, f"costs kept in another format are not used ({file})"
            if kept != asdict(place):
                return None, f"costs measured with mlx {kept['mlx']} are not used with {place.mlx}"
            return _learned(values), None
        except FileNotFoundError:
            return None, None
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            return None, f"the costs in {file} cannot be read ({error}); measuring again"

    def save(self, place: CostKey, learned: Learned) -> str | None:
        """Keep what was learned at `place`; return a word on why that failed, if it did."""
        curve, start = asdict(learned.curve), asdict(learned.start)
        values = {"format": _FORMAT, "place": asdict(place), "curve": curve, "start": start}
        try:
            write_json(self.folder / place.name, values)
        except OSError as error:
            return f"costs could not be kept in {self.folder} ({error.strerror})"
        return None


def _learned(values: Mapping[str, Any]) -> Learned:
    curve, start = values["curve"], values["start"]
    return Learned(
        CostCurve(
            widths=tuple(int(width) for width in curve["widths"]),
            contexts=tuple(int(context) for context in curve["contexts"]),
            seconds=tuple(tuple(float(cost) for cost in row) for row in curve["seconds"]),
            row_s=float(curve["row_s"]),
        ),
        Start(
            tuple(float(count) for count in start["tries"]),
            tuple(float(count) for count in start["hits"]),
        ),
    )
