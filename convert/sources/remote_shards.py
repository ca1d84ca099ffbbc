"""Weight files of a hub repository that are on the disk only while a conversion needs them.

It must not know what a conversion does with a shard.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.convert.safetensors import File
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.hub.download import Commit, DownloadJob, OnProgress, RemoteFile
from dflash_mlx.hub.errors import hub_errors
from dflash_mlx.loading.safetensors import TensorEntry, read_header

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, a quota or a file system that has no space for a file."""


class ShardFile(File):
    """A shard that can be read only while it is attached to a file on the disk."""

    def __init__(self, name: str, n_bytes: int) -> None:
        self.path = Path(name)
        self.size = n_bytes
        self._attached: File | None = None

    def attach(self, path: Path) -> None:
        """Read from the file at `path` from now on."""
        self._attached = File(path)

    def detach(self) -> None:
        """Close the attached file."""
        self._attached = None

    def read(self, position: int, n_bytes: int) -> bytes:
        """Return exactly `n_bytes` bytes from `position`."""
        assert self._attached, f"{self.path} is read before it was downloaded"
        return self._attached.read(position, n_bytes)


@dataclass(frozen=True)
class RemoteShards:
    """The weight files of a repository at one commit.

    Args:
        commit: the commit, in the hub cache.
        remote: size and hash of each file.
        entries: the tensors of each file, by file name and tensor name.
        files: what the rows of the source read from.
    """

    commit: Commit
    remote: Mapping[str, RemoteFile]
    entries: Mapping[str, Mapping[str, TensorEntry]]
    files: Mapping[str, ShardFile]

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.n_bytes for file in self.remote.values())

    def largest_download(self) -> int:
        """Return the size of the largest file that is not in the hub cache, in bytes."""
        return max(
            (file.n_bytes for name, file in self.remote.items() if not self._cached(name)),
            default=0,
        )

    def _cached(self, name: str) -> bool:
        return (self.commit.snapshot / name).exists()

    def fetch(self, name: str, folder: Path, on_progress: OnProgress) -> Path:
        """Return the path of a shard: in the hub cache, or downloaded into `folder`.

        An interrupted download resumes.

        Raises:
            DownloadFailed: the hub refuses or cannot be reached, or the content has another hash.
            BadCheckpoint: the file has another header than at the start.
            OSError: the disk is full or fails.
        """
        if self._cached(name):
            return self.commit.snapshot / name
        repository, sha = self.commit.repository, self.commit.sha
        job = DownloadJob(Commit(repository, sha, folder), [self.remote[name]], on_progress)
        full: list[OSError] = []
        with hub_errors(repository, sha):
            try:
                path = job.fetch(self.remote[name])
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                full.append(error)
        if full:
            raise full[0]  # reported by the conversion, with its own folder
        if read_header(path) != self.entries[name]:
            raise BadCheckpoint(
                f"{name} of {repository} has another header than at the start; run the command "
                "again"
            )
        return path
