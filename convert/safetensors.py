"""Tensors of safetensors files, readable by row range. `loading.safetensors` checks the headers."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.convert.tensors import (
    Carrier,
    Rows,
    from_bytes,
    item_bytes,
    n_bytes,
    row_width,
)
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.loading.safetensors import TensorEntry, read_checkpoint, read_header

_LONG_READ = 1 << 20
"""Bytes from which on a read is one chunk of many, rather than a header or a single row."""
_READS_AHEAD = 4
"""Chunks announced to the kernel: two for each of the two worker threads."""


class File:
    """An open file that is read at positions; threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise BadCheckpoint(
                f"{path} cannot be read ({error.strerror}); download it again"
            ) from error
        self.size = os.fstat(self._descriptor).st_size

    def read(self, position: int, n_bytes: int) -> bytes:
        """Return exactly `n_bytes` bytes from `position`.

        Raises:
            BadCheckpoint: the file ends earlier, or the disk fails.
        """
        if position < 0 or position + n_bytes > self.size:
            raise BadCheckpoint(
                f"{self.path} has {self.size} bytes and needs {position + n_bytes}; download it "
                "again"
            )
        if n_bytes >= _LONG_READ and sys.platform == "linux":
            # the disk reads the next chunks while this one is computed
            ahead = position + n_bytes, _READS_AHEAD * n_bytes
            os.posix_fadvise(self._descriptor, *ahead, os.POSIX_FADV_WILLNEED)
        parts = []
        while n_bytes:
            try:
                part = os.pread(self._descriptor, n_bytes, position)
            except OSError as error:
                raise BadCheckpoint(
                    f"{self.path} cannot be read at byte {position} ({error.strerror}); check the "
                    "disk, then download it again"
                ) from error
            if not part:
                raise BadCheckpoint(f"{self.path} ended at byte {position}; download it again")
            parts.append(part)
            position += len(part)
            n_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@dataclass(frozen=True)
class StoredRows:
    """A tensor inside a file; `position` is the offset of its first byte."""

    file: File
    position: int
    dtype: str
    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        width = row_width(self.shape)
        row_bytes = width * item_bytes(self.dtype)
        raw = self.file.read(self.position + start * row_bytes, (stop - start) * row_bytes)
        return from_bytes(raw, self.dtype, width)


def read_file(path: Path) -> dict[str, Rows]:
    """Return the tensors of one file by name; no weight is read.

    Raises:
        BadCheckpoint: the header is malformed or does not describe the file.
        UnsupportedModel: a tensor has an element type that MLX cannot hold.
    """
    return _rows(File(path), read_header(path))


def read_folder(folder: Path) -> dict[str, Rows]:
    """Return the tensors of a folder by name: those of its index, or of its only file.

    Raises:
        BadCheckpoint: a shard is missing, or the index contradicts the shards.
    """
    tensors: dict[str, Rows] = {}
    for name, entries in read_checkpoint(folder).items():
        tensors |= _rows(File(folder / name), entries)
    return tensors


def _rows(file: File, entries: Mapping[str, TensorEntry]) -> dict[str, Rows]:
    return {
        name: StoredRows(file, entry.offset, entry.dtype, entry.shape)
        for name, entry in entries.items()
    }


def total_bytes(tensors: Mapping[str, Rows]) -> int:
    """Return the bytes of all tensors."""
    return sum(n_bytes(rows.dtype, rows.shape) for rows in tensors.values())
