"""Stores tuning results, one JSON file per chip, macOS and MLX version.

Processes that share a file merge their results under a lock. A damaged file is set aside.
"""

import atexit
import fcntl
import hashlib
import json
import os
import platform as host
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import mlx.core as mx

from dflash_mlx.system.json_file import write_json
from dflash_mlx.system.state_file import read_state

MAX_ATTEMPTS: Final = 3
"""Failed attempts after which a case is not tuned again. A failure that repeats at three starts
is not temporary."""

_ENDED = "this case ended the process; `doctor --autotune` tries it again"


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
    """The fields of the selected geometry, or None for stock MLX, and the reason.

    `attempts` counts attempts that failed for a cause that may be temporary; 0 means that the
    case was decided.
    """

    geometry: dict[str, int] | None
    reason: str
    attempts: int = 0

    @property
    def is_final(self) -> bool:
        """Whether the case is not tuned again."""
        return not 0 < self.attempts < MAX_ATTEMPTS


@dataclass
class _Contents:
    """Results by key, and the process that tunes a case, by the key of the case."""

    results: dict[str, StoredResult] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)


class ResultStore:
    """The results of one platform. Every write merges with what other processes wrote."""

    def __init__(self, folder: Path, platform: TuningPlatform) -> None:
        self.platform = platform
        name = hashlib.sha256(json.dumps(asdict(platform)).encode()).hexdigest()[:12]
        self.path = folder / f"kernels-{name}.json"
        self.error: str | None = None
        """Why results could not be read or written, or None."""
        self._contents = self._read()
        self._own: dict[str, StoredResult] = {}  # lost by no failed write
        self._begun: set[str] = set()
        _STORES.add(self)

    def read(self, key: str) -> StoredResult | None:
        """Return the stored result, or None.

        A case that another process began and did not finish has the result stock MLX, unless that
        process still runs.
        """
        if key in self._own:
            return self._own[key]
        pid = self._contents.running.get(key)
        if pid is not None and not _is_alive(pid):
            return StoredResult(None, _ENDED, MAX_ATTEMPTS)
        return self._contents.results.get(key)

    def begin(self, key: str) -> None:
        """Mark a case as running, before it can end the process."""
        self._begun.add(key)
        self._write()

    def finish(self, key: str, result: StoredResult) -> None:
        """Store the result of a case that was marked.

        It is stored in memory at least; `error` says why the file could not be written.
        """
        self._begun.discard(key)
        self._own[key] = result
        self._write(ended=key)

    def abandon(self, key: str) -> None:
        """Remove the mark of a case without a result."""
        self._begun.discard(key)
        self._write(ended=key)

    def abandon_all(self) -> None:
        """Remove the marks of all cases that this store began."""
        for key in tuple(self._begun):
            self.abandon(key)

    def _write(self, ended: str | None = None) -> None:
        """Merge the results and marks of this process into the file."""
        try:
            with _locked(self.path.with_suffix(".lock")):
                contents = self._read()
                if ended is not None:
                    contents.running.pop(ended, None)
                contents.running.update(dict.fromkeys(self._begun, os.getpid()))
                contents.results.update(self._own)
                self._contents = contents
                write_json(self.path, self._as_json(contents))
            self.error = None
        except OSError as error:
            folder = self.path.parent
            self.error = f"kernel choices could not be stored in {folder} ({error.strerror})"

    def _read(self) -> _Contents:
        contents, notice = read_state(
            self.path, "the kernel choices", self._parse, "the kernels are tuned again"
        )
        if notice is not None:
            self.error = notice
        return contents or _Contents()

    def _as_json(self, contents: _Contents) -> dict[str, Any]:
        results = {key: asdict(entry) for key, entry in sorted(contents.results.items())}
        return {
            "platform": asdict(self.platform),
            "results": results,
            "running": contents.running,
        }

    def _parse(self, value: Any) -> _Contents:
        """Return the contents of a file; any exception means that it is damaged."""
        if value["platform"] != asdict(self.platform):
            raise ValueError("it belongs to another platform")
        results = {str(key): _result(raw) for key, raw in value["results"].items()}
        running = {str(key): int(pid) for key, pid in value["running"].items()}
        return _Contents(results, running)


_STORES: Final["WeakSet[ResultStore]"] = WeakSet()


@atexit.register
def _abandon_at_exit() -> None:
    """Remove the marks of this process at its normal end, which no case caused."""
    for store in _STORES:
        store.abandon_all()


def _result(raw: Any) -> StoredResult:
    geometry, reason, attempts = raw["geometry"], raw["reason"], raw["attempts"]
    if not isinstance(reason, str) or type(attempts) is not int or attempts < 0:
        raise ValueError("a result has no reason or number of attempts")
    if geometry is not None and not all(type(n) is int for n in geometry.values()):
        raise ValueError("a geometry has values other than integers")
    return StoredResult(geometry, reason, attempts)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user, or not a process number
        return True
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        # Some network file systems have no locks. Results are then merged without one.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
