"""What the gate found out on this machine, kept in a folder that the caller chooses.

One JSON file per chip, macOS and MLX version, so an answer never crosses a version. A file
that cannot be read counts as empty: the kernels are raced again.
"""

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.system.json_file import write_json


@dataclass(frozen=True)
class Machine:
    """What an answer depends on besides the kernel and the shape."""

    chip: str
    macos: str
    mlx: str

    @classmethod
    def here(cls) -> "Machine":
        """Return this machine, with the MLX that is running."""
        chip = platform.processor() or platform.machine()
        if mx.metal.is_available():
            chip = str(mx.device_info()["device_name"])
        return cls(chip, platform.mac_ver()[0] or platform.system(), version("mlx"))


@dataclass(frozen=True)
class StoredVerdict:
    """The geometry to use as its fields, or None for stock MLX, and the reason."""

    geometry: dict[str, int] | None
    reason: str


class GateStore:
    """Stored verdicts of one machine. Read once; written whole, through a rename."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.machine = machine
        name = hashlib.sha256(json.dumps(asdict(machine)).encode()).hexdigest()[:12]
        self.path = folder / f"kernels-{name}.json"
        self._entries = _read(self.path, machine)
        self.fault: str | None = None
        """Why the last verdict could not be kept, if it could not."""

    def read(self, key: str) -> StoredVerdict | None:
        """The stored verdict, or None."""
        return self._entries.get(key)

    def write(self, key: str, geometry: dict[str, int] | None, reason: str) -> None:
        """Keep a verdict: for this process at least, and in the file unless there is a `fault`."""
        self._entries[key] = StoredVerdict(geometry, reason)
        try:
            self._save()
            self.fault = None
        except OSError as error:
            folder = self.path.parent
            self.fault = f"kernel choices could not be kept in {folder} ({error.strerror})"

    def _save(self) -> None:
        content = {
            "machine": asdict(self.machine),
            "verdicts": {name: asdict(entry) for name, entry in sorted(self._entries.items())},
        }
        write_json(self.path, content)


def _read(path: Path, machine: Machine) -> dict[str, StoredVerdict]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("machine") != asdict(machine):
        return {}
    verdicts = content.get("verdicts")
    if not isinstance(verdicts, dict):
        return {}
    return {key: entry for key, raw in verdicts.items() if (entry := _verdict(raw)) is not None}


def _verdict(raw: Any) -> StoredVerdict | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("reason"), str):
        return None
    geometry = raw.get("geometry")
    if geometry is None:
        return StoredVerdict(None, raw["reason"])
    if not isinstance(geometry, dict) or not all(type(n) is int for n in geometry.values()):
        return None
    return StoredVerdict(geometry, raw["reason"])
