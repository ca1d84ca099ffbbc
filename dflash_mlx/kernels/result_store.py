"""Stores tuning results, one JSON file per chip, macOS and MLX version.

A file that cannot be read counts as empty: its cases are tuned again.
"""

import hashlib
import json
import platform as host
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.system.json_file import write_json


@dataclass(frozen=True)
class TuningPlatform:
    """What a tuning result depends on, in addition to the kernel text and the shape."""

    chip: str
    macos: str
    mlx: str

    @classmethod
    def here(cls) -> "TuningPlatform":
        """Return the chip, macOS and MLX version of this process."""
        chip = host.processor() or host.machine()
        if mx.metal.is_available():
            chip = str(mx.device_info()["device_name"])
        return cls(chip, host.mac_ver()[0] or host.system(), version("mlx"))


@dataclass(frozen=True)
class StoredResult:
    """The fields of the selected geometry, or None for stock MLX, and the reason."""

    geometry: dict[str, int] | None
    reason: str


class ResultStore:
    """The results of one platform. The file is read once and replaced atomically at each write."""

    def __init__(self, folder: Path, platform: TuningPlatform) -> None:
        self.platform = platform
        name = hashlib.sha256(json.dumps(asdict(platform)).encode()).hexdigest()[:12]
        self.path = folder / f"kernels-{name}.json"
        self._entries = _read(self.path, platform)
        self.error: str | None = None
        """Why the last result could not be written to disk, or None."""

    def read(self, key: str) -> StoredResult | None:
        """The stored result, or None."""
        return self._entries.get(key)

    def write(self, key: str, geometry: dict[str, int] | None, reason: str) -> None:
        """Store a result in memory and on disk; `error` says why the file could not be written."""
        self._entries[key] = StoredResult(geometry, reason)
        try:
            self._save()
            self.error = None
        except OSError as error:
            folder = self.path.parent
            self.error = f"kernel choices could not be stored in {folder} ({error.strerror})"

    def _save(self) -> None:
        content = {
            "platform": asdict(self.platform),
            "results": {name: asdict(entry) for name, entry in sorted(self._entries.items())},
        }
        write_json(self.path, content)


def _read(path: Path, platform: TuningPlatform) -> dict[str, StoredResult]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("platform") != asdict(platform):
        return {}
    results = content.get("results")
    if not isinstance(results, dict):
        return {}
    return {key: entry for key, raw in results.items() if (entry := _result(raw)) is not None}


def _result(raw: Any) -> StoredResult | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("reason"), str):
        return None
    geometry = raw.get("geometry")
    if geometry is None:
        return StoredResult(None, raw["reason"])
    if not isinstance(geometry, dict) or not all(type(n) is int for n in geometry.values()):
        return None
    return StoredResult(geometry, raw["reason"])
