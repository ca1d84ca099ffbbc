"""The partial folder of a conversion and the journal from which an interrupted run resumes.

Next to the output folder OUT, `.OUT.partial` holds its files, `.OUT.download` the shard at hand,
and `.OUT.journal` what is finished, locked by the running process. OUT is absent or complete.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from dflash_mlx.convert.sources.remote_shards import RemoteShards
from dflash_mlx.errors import BadCheckpoint, BadRequest, UnsupportedModel
from dflash_mlx.hub.download import Commit

_PERMANENT = (BadCheckpoint, BadRequest, UnsupportedModel)
"""Failures that another run meets again, so that the partial output is removed."""


class WorkFolder:
    """Exclusive access to an output folder, from the first byte to the final rename.

    `finished` maps complete files to their SHA-256; `records` maps other finished steps to what
    `record` was given. Files named in `incomplete` may be partly written and are not removed when
    a run resumes. With `wait`, entering waits for another conversion into the same folder.
    """

    def __init__(
        self,
        out: Path,
        fingerprint: str,
        force: bool,
        incomplete: Collection[str] = (),
        wait: bool = False,
    ) -> None:
        self.out = out
        self.path = partial_folder(out)
        self.downloads = download_folder(out)
        self.spill = self.downloads / "spill"
        self.finished: dict[str, str] = {}
        self.records: dict[str, str] = {}
        self._incomplete = frozenset(incomplete)
        self._wait = wait
        self._fingerprint = fingerprint
        self._force = force
        self._replaced = out.parent / f".{out.name}.replaced"
        self._journal_path = out.parent / f".{out.name}.journal"
        self._journal: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Lock the output folder and take over the files of an interrupted run.

        Raises:
            BadRequest: another conversion writes there, or OUT exists and may not be replaced.
        """
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._journal = _locked(self._journal_path, self.out, self._wait)
        except OSError as error:
            raise BadRequest(
                f"cannot write {self._journal_path} ({error.strerror}); delete it if it is in the "
                "way, or choose another folder with -o"
            ) from error
        try:
            check_replaceable(self.out, self._force)
        except BadRequest:
            if not os.path.lexists(self.path):
                _remove(self.downloads)
                self._journal_path.unlink()
            self._journal.close()
            raise
        try:
            self._resume(self._journal)
        except OSError as error:
            self._journal.close()
            raise BadRequest(
                f"the partial output {self.path} cannot be used or removed ({error.strerror}); "
                f"delete {self.path} and {self._journal_path}"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._journal is not None
        if isinstance(error, _PERMANENT):
            shutil.rmtree(self.path, ignore_errors=True)
            shutil.rmtree(self.downloads, ignore_errors=True)
            self._journal_path.unlink(missing_ok=True)
        self._journal.close()

    def finish(self, name: str, sha256: str) -> None:
        """Record that the file `name` is complete and on the disk."""
        self.finished[name] = sha256
        self._append({"file": name, "sha256": sha256})

    def record(self, step: str, content: str) -> None:
        """Record that a step is finished and its output on the disk."""
        self.records[step] = content
        self._append({"step": step, "content": content})

    def delete_download(self, shards: RemoteShards, name: str) -> None:
        """Delete a shard from the download folder, after its step was recorded."""
        remote = shards.remote[name]
        commit = Commit(shards.commit.repository, shards.commit.sha, self.downloads)
        for path in (commit.snapshot / name, commit.blob(remote), commit.partial(remote)):
            path.unlink(missing_ok=True)

    def publish(self) -> None:
        """Rename the partial folder to OUT after all its files are on the disk."""
        assert self._journal is not None
        for path in [*self.path.rglob("*"), self.path]:
            sync(path)
        if self.out.exists():
            self.out.rename(self._replaced)
        self.path.rename(self.out)
        sync(self.out.parent)
        shutil.rmtree(self._replaced, ignore_errors=True)
        shutil.rmtree(self.downloads, ignore_errors=True)
        self._journal_path.unlink()

    def _resume(self, journal: IO[bytes]) -> None:
        if self.out.exists() and os.path.lexists(self._replaced):
            _remove(self._replaced)
        lines, end = _journal_lines(journal)
        same = bool(lines) and lines[0].get("fingerprint") == self._fingerprint
        if same and self.path.is_dir() and not self.path.is_symlink():
            self.finished = {
                line["file"]: line["sha256"] for line in lines[1:] if self._is_finished(line)
            }
            self.records = {
                line["step"]: line["content"] for line in lines[1:] if line.keys() == _STEP_KEYS
            }
            self._remove_unfinished()
            journal.truncate(end)
            return
        _remove(self.path)
        _remove(self.spill)
        self.path.mkdir()
        journal.truncate(0)
        self._append({"fingerprint": self._fingerprint})

    def _is_finished(self, line: dict[str, str]) -> bool:
        """Return whether the file of a journal line is inside the folder and has its hash."""
        name, sha256 = line.get("file", ""), line.get("sha256", "")
        if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            return False
        path = self.path
        for part in name.split("/"):
            path = path / part
            if os.path.islink(path):
                return False
        # unlike Path.is_file, this is false for names that no file can have
        return os.path.isfile(path) and file_hash(path) == sha256

    def _remove_unfinished(self) -> None:
        """Remove everything from the partial folder except the finished files."""
        for path in sorted(self.path.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
                continue
            name = str(path.relative_to(self.path))
            plain = path.is_file() and not path.is_symlink()
            if name not in self.finished and not (plain and name in self._incomplete):
                path.unlink()

    def _append(self, line: dict[str, str]) -> None:
        assert self._journal is not None
        self._journal.write(json.dumps(line).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def partial_folder(out: Path) -> Path:
    """Return the folder that holds the files of an unfinished conversion into `out`."""
    return out.parent / f".{out.name}.partial"


def download_folder(out: Path) -> Path:
    """Return the folder that holds the shard at hand of a conversion into `out`."""
    return out.parent / f".{out.name}.download"


def check_replaceable(out: Path, force: bool) -> None:
    """Check that OUT may be written: it is absent or empty, or a model that `force` replaces.

    Raises:
        BadRequest: OUT is something else.
    """
    if not os.path.lexists(out):
        return
    if not out.is_dir() or out.is_symlink():
        raise BadRequest(f"{out} is not a folder; choose another with -o")
    if not any(out.iterdir()):
        return
    if not force:
        raise BadRequest(f"{out} exists; choose another folder with -o, or replace it with --force")
    if not (out / "config.json").is_file() or not any(out.glob("*.safetensors")):
        raise BadRequest(
            f"{out} contains something other than a model, and --force replaces models only; "
            "choose another folder with -o"
        )


def _locked(path: Path, out: Path, wait: bool) -> IO[bytes]:
    """Open and lock the journal; retry if the previous owner removed it in between."""
    how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        journal = path.open("a+b")
        try:
            fcntl.flock(journal, how)
        except BlockingIOError as error:
            journal.close()
            raise BadRequest(
                f"another conversion is writing {out}; wait for it, or choose another folder "
                "with -o"
            ) from error
        if path.exists() and os.path.samestat(os.fstat(journal.fileno()), path.stat()):
            return journal
        journal.close()


def _journal_lines(journal: IO[bytes]) -> tuple[list[dict[str, str]], int]:
    """Return the valid lines of the journal and the position after them.

    A crash may cut the last line short. Anything that is not a line of this program ends the
    valid part, so that a damaged journal only costs the files listed after the damage.
    """
    journal.seek(0)
    lines: list[dict[str, str]] = []
    end = 0
    for raw in journal.read(_MAX_JOURNAL_BYTES).splitlines(keepends=True):
        line = _journal_line(raw) if raw.endswith(b"\n") else None
        if line is None:
            break
        lines.append(line)
        end += len(raw)
    return lines, end


_STEP_KEYS = {"step", "content"}
_MAX_JOURNAL_BYTES = 200_000_000
"""The entry of a converted shard has about 80 bytes per 8 MB of weights, so this is 20 TB."""


def _journal_line(raw: bytes) -> dict[str, str] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not all(isinstance(value, str) for value in line.values()):
        return None
    return line


def _remove(path: Path) -> None:
    """Remove a folder, a file or a link, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
