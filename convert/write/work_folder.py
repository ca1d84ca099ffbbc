"""The folder that a conversion fills before it is whole, and the journal that lets it resume.

Beside OUT stand, while a conversion runs or lies interrupted, `.OUT.partial` (the files) and
`.OUT.journal` (which files are done; locked by the process at work). Invariant: OUT is either
absent, or whole; a journal's line is written after the file it speaks of is on the disk.
"""

import fcntl
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from dflash_mlx.errors import BadCheckpoint, BadRequest, UnsupportedModel

_HOPELESS = (BadCheckpoint, BadRequest, UnsupportedModel)
"""Failures that running again would meet again, so that nothing is kept for it."""


class WorkFolder:
    """A conversion's claim on its output folder, from the first byte to the last rename."""

    def __init__(self, out: Path, fingerprint: str, force: bool) -> None:
        self.out = out
        self.path = partial_folder(out)
        self.finished: dict[str, str] = {}
        self._fingerprint = fingerprint
        self._force = force
        self._replaced = out.parent / f".{out.name}.replaced"
        self._journal_path = out.parent / f".{out.name}.journal"
        self._journal: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Take the lock and what an interrupted run left.

        Raises:
            BadRequest: another conversion writes there, or OUT exists and may not be replaced.
        """
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._journal = _locked(self._journal_path, self.out)
        except OSError as error:
            raise BadRequest(
                f"cannot write beside {self.out} ({error.strerror}); choose another folder with -o"
            ) from error
        try:
            check_replaceable(self.out, self._force)
        except BadRequest:
            if not self.path.exists():
                self._journal_path.unlink()
            self._journal.close()
            raise
        self._resume(self._journal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._journal is not None
        if isinstance(error, _HOPELESS):
            shutil.rmtree(self.path, ignore_errors=True)
            self._journal_path.unlink(missing_ok=True)
        self._journal.close()

    def finish(self, name: str, sha256: str) -> None:
        """Note that the file `name` is whole and on the disk."""
        self.finished[name] = sha256
        self._note({"file": name, "sha256": sha256})

    def publish(self) -> None:
        """Make the folder OUT, in one rename after everything in it is on the disk."""
        assert self._journal is not None
        for path in [*self.path.rglob("*"), self.path]:
            _sync(path)
        if self.out.exists():
            self.out.rename(self._replaced)
        self.path.rename(self.out)
        _sync(self.out.parent)
        shutil.rmtree(self._replaced, ignore_errors=True)
        self._journal_path.unlink()

    def _resume(self, journal: IO[bytes]) -> None:
        if self.out.exists() and self._replaced.exists():
            shutil.rmtree(self._replaced)
        lines, end = _whole_lines(journal)
        if lines and lines[0].get("fingerprint") == self._fingerprint and self.path.is_dir():
            self.finished = {
                line["file"]: line["sha256"]
                for line in lines[1:]
                if (self.path / line["file"]).is_file()
            }
            journal.truncate(end)
            return
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        journal.truncate(0)
        self._note({"fingerprint": self._fingerprint})

    def _note(self, line: dict[str, str]) -> None:
        assert self._journal is not None
        self._journal.write(json.dumps(line).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())


def partial_folder(out: Path) -> Path:
    """Return the folder in which a conversion into `out` grows."""
    return out.parent / f".{out.name}.partial"


def check_replaceable(out: Path, force: bool) -> None:
    """Check that OUT may be written: it is absent, empty, or a model that `force` gives up.

    Raises:
        BadRequest: OUT is something else.
    """
    if not os.path.lexists(out):
        return
    if not out.is_dir() or out.is_symlink():
        raise BadRequest(f"{out} is no folder; choose another with -o")
    if not any(out.iterdir()):
        return
    if not force:
        raise BadRequest(f"{out} exists; choose another folder with -o, or replace it with --force")
    if not (out / "config.json").is_file() or not any(out.glob("*.safetensors")):
        raise BadRequest(f"{out} holds something other than a model; --force replaces models only")


def _locked(path: Path, out: Path) -> IO[bytes]:
    """Open and lock the journal; again if its last owner removed it meanwhile."""
    while True:
        journal = path.open("a+b")
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            journal.close()
            raise BadRequest(
                f"another conversion is writing {out}; wait for it, or choose another folder "
                "with -o"
            ) from error
        if path.exists() and os.path.samestat(os.fstat(journal.fileno()), path.stat()):
            return journal
        journal.close()


def _whole_lines(journal: IO[bytes]) -> tuple[list[dict[str, str]], int]:
    """Return the journal's lines and where they end; a crash may have cut the last one short."""
    journal.seek(0)
    raw = journal.read()
    end = raw.rfind(b"\n") + 1
    return [json.loads(line) for line in raw[:end].splitlines()], end


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
