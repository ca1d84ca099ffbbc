"""Safetensors files read by row range, and folders of them, trusting nothing they say.

A header is believed only where it agrees with the file: sizes, offsets and shapes are checked
before a weight is read. Names of files come from an index and stay inside its folder.
Source: the safetensors format (length of the header in 8 bytes, JSON, data).
"""

import itertools
import json
import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.convert.tensors import (
    Carrier,
    Rows,
    from_bytes,
    is_known,
    item_bytes,
    n_bytes,
    row_width,
)
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel

_MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
INDEX = "model.safetensors.index.json"
_LONG_READ = 1 << 20
"""Bytes of a read that is one of many, rather than of a header or a single row."""
_READS_AHEAD = 4


class File:
    """An open file that is read at positions; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise BadCheckpoint(
                f"{path} cannot be read ({error.strerror}); fetch it again"
            ) from error
        self.size = os.fstat(self._descriptor).st_size

    def read(self, position: int, n_bytes: int) -> bytes:
        """Return exactly `n_bytes` bytes from `position`."""
        if n_bytes >= _LONG_READ and sys.platform == "linux":
            # the disk works while we compute, if it knows what comes next
            ahead = position + n_bytes, _READS_AHEAD * n_bytes
            os.posix_fadvise(self._descriptor, *ahead, os.POSIX_FADV_WILLNEED)
        parts = []
        while n_bytes:
            part = os.pread(self._descriptor, n_bytes, position)
            if not part:
                raise BadCheckpoint(f"{self.path} ended at byte {position}; fetch it again")
            parts.append(part)
            position += len(part)
            n_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@dataclass(frozen=True)
class StoredRows:
    """A tensor inside a file, its first byte at `position`."""

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
    """Return the tensors of one file by name, none of them read.

    Raises:
        BadCheckpoint: the header is malformed, or points outside the file or into another tensor.
        UnsupportedModel: a tensor has a type that MLX cannot hold.
    """
    file = File(path)
    if file.size < 8:
        raise BadCheckpoint(
            f"{path} has {file.size} bytes, too few for safetensors; fetch it again"
        )
    (length,) = struct.unpack("<Q", file.read(0, 8))
    if length > min(_MOST_HEADER_BYTES, file.size - 8):
        raise BadCheckpoint(
            f"{path} announces a header of {length} bytes and has {file.size}; it is truncated or "
            "no safetensors file, fetch it again"
        )
    header = _parse(file.read(8, length), path)
    tensors: dict[str, Rows] = {}
    ends: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end, stored = _stored(name, entry, file, 8 + length)
            tensors[name] = stored
            ends.append((begin, end, name))
    ends.sort()
    for (_, end, first), (begin, _, second) in itertools.pairwise(ends):
        if begin < end:
            raise BadCheckpoint(f"{path}: {first!r} and {second!r} overlap; fetch it again")
    return tensors


def _parse(raw: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BadCheckpoint(f"{path} names a tensor twice; fetch it again")
        return found

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadCheckpoint):
            raise
        raise BadCheckpoint(f"{path} has a header that is no JSON; fetch it again") from error
    if not isinstance(header, dict):
        raise BadCheckpoint(f"{path} has a header that is no table of tensors; fetch it again")
    return header


def _stored(name: str, entry: Any, file: File, data: int) -> tuple[int, int, StoredRows]:
    room = file.size - data
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{file.path}: the entry of {name!r} is malformed") from error
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise BadCheckpoint(f"{file.path}: {name!r} has sizes that are no whole numbers")
    if not begin <= end <= room:
        raise BadCheckpoint(
            f"{file.path} is truncated: {name!r} ends at byte {data + end} and the file at "
            f"{file.size}; fetch it again"
        )
    if not isinstance(dtype, str) or not is_known(dtype):
        raise UnsupportedModel(
            f"{file.path}: {name!r} has the type {dtype!r}, which MLX cannot hold; save it as "
            "BF16, F16 or F32"
        )
    if n_bytes(dtype, shape) != end - begin:
        raise BadCheckpoint(
            f"{file.path}: {name!r} is {dtype} {list(shape)}, {n_bytes(dtype, shape)} bytes, and "
            f"takes {end - begin}; fetch it again"
        )
    return begin, end, StoredRows(file, data + begin, dtype, shape)


def read_folder(folder: Path) -> dict[str, Rows]:
    """Return the tensors of a folder by name: those of its index, or of its only file.

    Raises:
        BadCheckpoint: a shard is missing, or the index names what is not there.
    """
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    indexed = _read_index(folder)
    if indexed is None and len(names) != 1:
        found = f"{len(names)} safetensors files and no {INDEX}" if names else "no safetensors file"
        raise BadCheckpoint(f"{folder} holds {found}; fetch it again")
    shards = {
        name: read_file(folder / name)
        for name in sorted(set(indexed.values()) if indexed else names)
    }
    if indexed is None:
        return shards[names[0]]
    for tensor, shard in indexed.items():
        if tensor not in shards[shard]:
            raise BadCheckpoint(f"{folder / INDEX} puts {tensor!r} into {shard}, which lacks it")
    for shard, tensors in shards.items():
        if extra := next((name for name in tensors if indexed.get(name) != shard), None):
            raise BadCheckpoint(f"{folder / shard} holds {extra!r}, which the index does not list")
    return {tensor: shards[shard][tensor] for tensor, shard in indexed.items()}


def _read_index(folder: Path) -> dict[str, str] | None:
    path = folder / INDEX
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_bytes())["weight_map"]
        shards = set(table.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is no index of shards; fetch it again") from error
    for shard in shards:
        if not isinstance(shard, str) or not is_plain_name(shard):
            raise BadCheckpoint(
                f"{path} names the file {shard!r}; a shard lies beside its index. Do not trust "
                "this checkpoint"
            )
        if not (folder / shard).is_file():
            raise BadCheckpoint(f"{folder} lacks the shard {shard}; fetch it again")
    return dict(table)


def is_plain_name(name: str) -> bool:
    """Whether a file name stays in its folder, whatever system reads it."""
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\\0:")


def total_bytes(tensors: Mapping[str, Rows]) -> int:
    """Return the bytes of all tensors."""
    return sum(n_bytes(rows.dtype, rows.shape) for rows in tensors.values())
