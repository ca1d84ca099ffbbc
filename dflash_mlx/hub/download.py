"""Downloads files of one commit into the hub cache and resumes partial downloads.

A blob is written to `<hash>.incomplete`, renamed after its hash is verified, and linked into the
snapshot. It must not decide which files or commit to download.
"""
# We download blobs ourselves because huggingface_hub 2 deletes a partial file when a run ends.

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dflash_mlx.errors import DownloadFailed

OnProgress = Callable[[int, int], None]
"""Called with the bytes present and the total bytes."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 30.0
"""Seconds without data before a connection counts as lost: three times huggingface_hub's default,
for slow connections."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a commit. `digest` is SHA-256 for LFS files and git's SHA-1 for others."""

    name: str
    n_bytes: int
    digest: str


@dataclass(frozen=True)
class Commit:
    """A repository at one commit, and the hub cache that stores it."""

    repository: str
    sha: str
    cache: Path

    @property
    def _home(self) -> Path:
        return self.cache / ("models--" + self.repository.replace("/", "--"))

    @classmethod
    def cached(cls, repository: str, revision: str | None, cache: Path) -> "Commit | None":
        """Return the commit of a revision (None: the default branch) that the cache knows.

        A branch is looked up in the cache's `refs`, which other tools also write.
        """
        name = revision or "main"
        if not _COMMIT.fullmatch(name):
            try:
                name = (cls(repository, "", cache)._home / "refs" / name).read_text().strip()
            except (OSError, ValueError):
                return None
        return cls(repository, name, cache) if _COMMIT.fullmatch(name) else None

    @property
    def snapshot(self) -> Path:
        """The folder with the files of this commit."""
        return self._home / "snapshots" / self.sha

    def blob(self, file: RemoteFile) -> Path:
        """Return the path of the content of `file`."""
        return self._home / "blobs" / file.digest

    def partial(self, file: RemoteFile) -> Path:
        """Return the path of the partial content of `file`."""
        return self.blob(file).with_name(file.digest + ".incomplete")

    def lock(self, file: RemoteFile) -> Path:
        """Return the lock file that huggingface_hub also uses for this blob."""
        return self.cache / ".locks" / self._home.name / f"{file.digest}.lock"

    def missing_bytes(self, files: Iterable[RemoteFile]) -> int:
        """Return the bytes of `files` that are not in the cache."""
        return sum(file.n_bytes - self._present_bytes(file) for file in files)

    def known_absent(self, name: str) -> bool:
        """Return whether the cache records that the repository has no file of this name."""
        return (self._no_exist / name).exists()

    def record(self, branch: str | None, absent: Iterable[str]) -> None:
        """Write what other tools look up: the commit of `branch`, and files that do not exist.

        The default branch is recorded too if the cache has no entry for it.

        Raises:
            OSError: the cache cannot be written.
        """
        main = self._home / "refs" / "main"
        if branch is not None or not main.exists():
            ref = self._home / "refs" / (branch or "main")
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self.sha)
        for name in absent:
            self._no_exist.mkdir(parents=True, exist_ok=True)
            (self._no_exist / name).touch()

    @property
    def _no_exist(self) -> Path:
        return self._home / ".no_exist" / self.sha

    def _present_bytes(self, file: RemoteFile) -> int:
        if (self.snapshot / file.name).exists() or self.blob(file).exists():
            return file.n_bytes
        partial = self.partial(file)
        return min(partial.stat().st_size, file.n_bytes) if partial.exists() else 0


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def spelled_bytes(n_bytes: int) -> str:
    """Return a byte count in decimal units, for example "1.2 GB"."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


class DownloadJob:
    """Downloads files of one commit and reports the progress over all of them."""

    def __init__(
        self, commit: Commit, files: Iterable[RemoteFile], on_progress: OnProgress
    ) -> None:
        files = list(files)
        self.commit = commit
        self.on_progress = on_progress
        self.total = sum(file.n_bytes for file in files)
        self.done = self.total - commit.missing_bytes(files)

    def fetch(self, file: RemoteFile) -> Path:
        """Return the path of `file` in the snapshot, downloading what is missing.

        Raises:
            DownloadFailed: the content does not match the hash that the hub listed.
            OSError: the disk is full, or the cache cannot be written.
            huggingface_hub.errors.HTTPError: the hub refused the request or cannot be reached.
        """
        from huggingface_hub.utils import WeakFileLock

        self.on_progress(self.done, self.total)
        commit, target = self.commit, self.commit.snapshot / file.name
        if target.exists():
            return target
        blob = commit.blob(file)
        for folder in (blob.parent, commit.lock(file).parent):
            folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(commit.lock(file)):
            if not blob.exists():
                self._fetch_blob(file)
        _link(blob, target)
        return target

    def _fetch_blob(self, file: RemoteFile) -> None:
        partial = self.commit.partial(file)
        with partial.open("ab") as output:
            if output.tell() > file.n_bytes:
                _empty(output)
            self._fill(file, output)
        if _digest(partial, file) != file.digest:
            partial.unlink()
            raise DownloadFailed(
                f"{file.name} of {self.commit.repository} is damaged (its hash differs from "
                "the one the hub listed) and was deleted; run the command again"
            )
        partial.replace(self.commit.blob(file))

    def _fill(self, file: RemoteFile, output: BinaryIO) -> None:
        """Append to `output` until it is complete; stop when a connection adds no bytes."""
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.errors import HTTPError as TransportError

        while (begun := output.tell()) < file.n_bytes:
            try:
                self._stream(file, output)
            except HfHubHTTPError:
                raise
            except TransportError:
                if output.tell() <= begun:
                    raise
            if output.tell() <= begun:
                raise DownloadFailed(
                    f"the hub sent only {begun} of the {file.n_bytes} bytes of {file.name}; "
                    "run the command again later"
                )

    def _stream(self, file: RemoteFile, output: BinaryIO) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        begun = output.tell()
        url = hf_hub_url(self.commit.repository, file.name, revision=self.commit.sha)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if begun:
            headers["Range"] = f"bytes={begun}-"
        with get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as response:
            hf_raise_for_status(response)
            if begun and response.status_code != 206:
                _empty(output)
                self._count(-begun)
            # in the sizes they arrive: a larger chunk would be lost if the connection drops in it
            for chunk in response.iter_bytes():
                if output.tell() + len(chunk) > file.n_bytes:
                    _empty(output)
                    raise DownloadFailed(
                        f"the hub sent more than the {file.n_bytes} bytes that it lists for "
                        f"{file.name}; check HF_ENDPOINT and run the command again"
                    )
                output.write(chunk)
                self._count(len(chunk))

    def _count(self, n_bytes: int) -> None:
        self.done += n_bytes
        self.on_progress(self.done, self.total)


def _link(blob: Path, target: Path) -> None:
    """Make `target` show the content of `blob`, as a relative link like huggingface_hub's."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.symlink(os.path.relpath(blob, target.parent), target)
    except FileExistsError:
        pass  # another process was faster
    except OSError:  # a file system without links
        shutil.copyfile(blob, target)


def _empty(output: BinaryIO) -> None:
    output.seek(0)
    output.truncate()


def _digest(path: Path, file: RemoteFile) -> str:
    """Return the digest of `path` as the hub names it: SHA-256, or git's SHA-1 of a blob."""
    if len(file.digest) == 64:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    content_bytes = path.read_bytes()
    header = f"blob {len(content_bytes)}\0".encode()
    return hashlib.sha1(header + content_bytes, usedforsecurity=False).hexdigest()
