"""Safetensors headers and the index of shards, checked before any weight is read.

Accepts no file that the reference library refuses, and only element types that MLX can hold. It
must not know models. Source of the rules: the safetensors format and its library, 0.8.0.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.pairs.model_files import INDEX, needed_weights
from dflash_mlx.system.foreign import quoted, reading, shorten

_MAX_HEADER_BYTES = 100_000_000
"""The limit of the format."""
_MAX_DIMENSION = 2**31
"""MLX's limit of one dimension of an array."""
_MAX_COUNT = 2**63
"""The library refuses products of sizes that overflow 64 bits, even beside a size of 0."""

ITEM_BYTES: Mapping[str, int] = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1},
    **{"U16": 2, "I16": 2, "F16": 2, "BF16": 2},
    **{"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8},
}
"""Bytes of one element, of the types that MLX can hold."""

_DAMAGED = "download it again"


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its element type, its shape, and its bytes from `offset` on."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name, without reading a weight.

    Raises:
        BadCheckpoint: the header is malformed, or its tensors do not cover the file's data
            exactly once and in order.
        UnsupportedModel: a tensor has an element type that MLX cannot hold.
    """
    with reading(path, "the safetensors header", _DAMAGED), path.open("rb") as file:
        size = path.stat().st_size
        raw = _header_bytes(file, size, path)
        header = _parse(raw, path)
        start = 8 + len(raw)
        entries = {
            name: _entry(name, fields, start, size, path)
            for name, fields in header.items()
            if name != "__metadata__"
        }
        _check_coverage(entries, start, size, path)
    return entries


def _header_bytes(file: BinaryIO, size: int, path: Path) -> bytes:
    if size < 8:
        raise BadCheckpoint(f"{path} has {size} bytes, too few for safetensors; {_DAMAGED}")
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(_MAX_HEADER_BYTES, size - 8):
        raise BadCheckpoint(
            f"{path} announces a header of {length} bytes and has {size}; it is truncated or not "
            f"a safetensors file, {_DAMAGED}"
        )
    return file.read(int(length))


def _parse(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the header's JSON object, as strictly as the reference library reads it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BadCheckpoint(f"{path} has a name twice in its header; {_DAMAGED}")
        return found

    def unsigned(digits: str) -> int:
        if digits.startswith("-"):
            raise ValueError("a negative number")
        return int(digits)

    def constant(name: str) -> Any:
        raise ValueError(f"the constant {name}")

    text = raw.decode("utf-8")
    if not text.startswith("{"):
        raise BadCheckpoint(f"{path} has a header that is not a JSON object; {_DAMAGED}")
    header = json.loads(text, object_pairs_hook=unique, parse_int=unsigned, parse_constant=constant)
    if "\\u" in text:  # half a surrogate pair is JSON for Python only
        json.dumps(header, ensure_ascii=False).encode("utf-8")
    metadata = header.get("__metadata__")
    if metadata is None:  # MLX writes null
        return dict(header)
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadCheckpoint(f"{path}: __metadata__ is not a table of texts; {_DAMAGED}")
    return dict(header)


def _entry(name: str, fields: Any, start: int, size: int, path: Path) -> TensorEntry:
    where = f"{path}: tensor {quoted(name)}"
    if not isinstance(fields, dict) or not fields.keys() >= {"dtype", "shape", "data_offsets"}:
        raise BadCheckpoint(f"{where} needs dtype, shape and data_offsets; {_DAMAGED}")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    for key, value in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise BadCheckpoint(
                f"{where} has {key} {quoted(value)}; it needs whole numbers. Download it again"
            )
    if any(number >= _MAX_DIMENSION for number in shape):
        raise UnsupportedModel(
            f"{where} has shape {quoted(shape)}; MLX holds dimensions below {_MAX_DIMENSION}. Use "
            "another model"
        )
    if len(offsets) != 2 or not offsets[0] <= offsets[1]:
        raise BadCheckpoint(
            f"{where} has data_offsets {quoted(offsets)}; it needs a start and an end. "
            f"Download it again"
        )
    if start + offsets[1] > size:
        raise BadCheckpoint(
            f"{path} is truncated: tensor {quoted(name)} ends at byte {start + offsets[1]} and "
            f"the file at {size}; {_DAMAGED}"
        )
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise UnsupportedModel(
            f"{where} has the type {quoted(dtype)}, which MLX cannot hold; save it as BF16, F16 "
            "or F32"
        )
    needed, stored = _n_bytes(dtype, shape), offsets[1] - offsets[0]
    if needed != stored:
        raise BadCheckpoint(
            f"{where} is {dtype} of shape {quoted(shape)}, {needed} bytes, and its data_offsets "
            f"span {stored}; {_DAMAGED}"
        )
    return TensorEntry(dtype, tuple(shape), start + offsets[0], stored)


def _n_bytes(dtype: str, shape: list[int]) -> int:
    """Return the bytes of a tensor; `_MAX_COUNT` or more where a 64-bit product overflows."""
    product = 1
    for size in shape:
        product *= size
        if product >= _MAX_COUNT:
            return product
    return math.prod(shape) * ITEM_BYTES[dtype]


def _check_coverage(entries: Mapping[str, TensorEntry], start: int, size: int, path: Path) -> None:
    """Check that the tensors follow one another without overlap or gap and end with the file."""
    position, before = start, "the header"
    ordered = sorted(entries.items(), key=lambda item: (item[1].offset, item[1].n_bytes))
    for name, entry in ordered:
        if entry.offset != position:
            problem = "overlap" if entry.offset < position else "leave a gap between them"
            raise BadCheckpoint(f"{path}: {before} and tensor {quoted(name)} {problem}; {_DAMAGED}")
        position, before = entry.offset + entry.n_bytes, f"tensor {quoted(name)}"
    if position != size:
        raise BadCheckpoint(
            f"{path} holds {size - position} bytes after its last tensor; it needs none. "
            f"Download it again"
        )


def read_checkpoint(folder: Path) -> dict[str, dict[str, TensorEntry]]:
    """Return the tensors of a checkpoint by file name and tensor name.

    The index decides which files belong to the checkpoint; other safetensors files in the folder
    are ignored.

    Raises:
        BadCheckpoint: a file is missing or damaged, or the index and the files disagree.
        UnsupportedModel: a tensor has an element type that MLX cannot hold.
    """
    index = read_index(folder)
    files = {name: read_header(folder / name) for name in _weight_files(folder)}
    if index is None:
        return files
    for tensor, name in index.items():
        if tensor not in files[name]:
            raise BadCheckpoint(
                f"{folder / INDEX} puts tensor {quoted(tensor)} into {name}, which lacks it; "
                f"{_DAMAGED}"
            )
    for name, tensors in files.items():
        if extra := next((tensor for tensor in tensors if index.get(tensor) != name), None):
            raise BadCheckpoint(
                f"{folder / name} holds tensor {quoted(extra)}, which the index does not list; "
                f"{_DAMAGED}"
            )
    return files


def _weight_files(folder: Path) -> list[str]:
    """Return the names of a checkpoint's files.

    Raises:
        BadCheckpoint: a file is missing, or there are several without index and numbers.
    """
    names = needed_weights(folder)
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise BadCheckpoint(
            f"{folder} lacks the weight files {shorten(', '.join(missing))}; {_DAMAGED}"
        )
    if len(names) > 1 and not (folder / INDEX).exists() and "-of-" not in names[0]:
        raise BadCheckpoint(
            f"{folder} holds {len(names)} safetensors files and no {INDEX}; download the model "
            "again"
        )
    return names


def read_index(folder: Path) -> dict[str, str] | None:
    """Return the file name of each tensor, None where the folder has no index.

    Raises:
        BadCheckpoint: the index is malformed, or names a file outside the folder.
    """
    path = folder / INDEX
    if not path.exists():
        return None
    with reading(path, "the index of shards", _DAMAGED):
        index = json.loads(path.read_text(encoding="utf-8"))
        table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not table:
        raise BadCheckpoint(f"{path} needs a weight_map with a file name per tensor; {_DAMAGED}")
    for name in table.values():
        if not isinstance(name, str) or not is_plain_name(name):
            raise BadCheckpoint(
                f"{path} names the file {quoted(name)}; it needs names of files in its own folder. "
                "Do not trust this checkpoint"
            )
    return dict(table)


def is_plain_name(name: str) -> bool:
    """Return whether a file name stays in its folder on every operating system."""
    # no file system takes names of more than 255 bytes
    plain = bool(name) and name not in (".", "..") and not set(name) & set("/\\\0:")
    return plain and len(name.encode("utf-8", "replace")) <= 255
