"""The header of a GGUF file: metadata and table of tensors, checked against the file's size.

It must not know models or tokenizers. `mx.load` reads past the end of a truncated file and
converts types silently, so the header is checked first. Source: ggml's `gguf.md`, versions 2, 3.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.system.foreign import quoted, reading, shorten

TYPE_NAMES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"},
    **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
    **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S"},
    **{22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}
AS_STORED = {"F32": (1, 4), "F16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34)}
"""Elements and bytes of one block, of the types that are read without conversion."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_NUMBERS[12] = "d"
_UINT32, _STRING, _ARRAY = 4, 8, 9
_LENGTH = struct.Struct("<Q")
_MAX_ITEMS = 1 << 24
"""Longest text, and items of all lists together, that are accepted; the largest vocabularies have
a fiftieth of this, and as Python objects it is 1 GB."""
_MAX_METADATA_BYTES = 1 << 28
"""The largest published headers have 30 MB."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: the name of its type, its shape in MLX's order, its bytes in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int
    offset: int


@dataclass(frozen=True)
class GGUFHeader:
    """Metadata as Python values (lists for arrays) and the tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path, blocks: Mapping[str, tuple[int, int]] = AS_STORED) -> GGUFHeader:
    """Return the header of the GGUF file at `path`.

    `blocks` holds elements and bytes of one block for each type that the caller can read.

    Raises:
        BadCheckpoint: the file is not GGUF, is truncated, or its header contradicts itself.
        UnsupportedModel: a tensor has a type that `blocks` lacks.
    """
    with reading(path, "the GGUF header", "download it again"), path.open("rb") as file:
        size = path.stat().st_size
        if size < 24:
            raise BadCheckpoint(
                f"{path} has {size} bytes, too few for a GGUF file; download it again"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, size, path, blocks).header()


class _Reader:
    """Reads the header once, from front to back, never past `size`."""

    def __init__(
        self, data: mmap.mmap, size: int, path: Path, blocks: Mapping[str, tuple[int, int]]
    ) -> None:
        self.data = data
        self.size = size
        self.path = path
        self.blocks = blocks
        self.position = 0
        self.n_items = 0

    def header(self) -> GGUFHeader:
        if self.take(4) != b"GGUF":
            raise self.bad("does not begin with 'GGUF'")
        version = self.number("I")
        if version not in (2, 3):
            raise self.bad(f"is of GGUF version {version}, not 2 or 3")
        n_tensors, n_keys = self.number("Q"), self.number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.text()
            if key in metadata:
                raise self.bad(f"has the key {quoted(key)} twice")
            metadata[key] = self.value(self.number("I"), key)
            if self.position > _MAX_METADATA_BYTES:
                raise self.bad(f"has more than {_MAX_METADATA_BYTES} bytes of metadata")
        entries = [self.tensor() for _ in range(self.plausible(n_tensors, 24, "tensors"))]
        start = self.data_start(metadata)
        tensors: dict[str, TensorInfo] = {}
        for relative in entries:
            info = replace(relative, offset=start + relative.offset)
            if info.name in tensors:
                raise self.bad(f"holds the tensor {quoted(info.name)} twice")
            if info.offset + info.n_bytes > self.size:
                raise self.bad(
                    f"is truncated: {quoted(info.name)} ends at byte {info.offset + info.n_bytes} "
                    f"and the file at byte {self.size}"
                )
            tensors[info.name] = info
        return GGUFHeader(metadata, tensors)

    def tensor(self) -> TensorInfo:
        name = self.text()
        n_dims = self.number("I")
        if not 1 <= n_dims <= 4:
            raise self.bad(f"gives {quoted(name)} {n_dims} dimensions, not 1 to 4")
        dims = [self.number("Q") for _ in range(n_dims)]
        kind = self.number("I")
        offset = self.number("Q")
        named = TYPE_NAMES.get(kind, f"type {kind}")
        if named not in self.blocks:
            raise UnsupportedModel(
                f"{self.path}: {quoted(name)} is stored as {named}; supported are "
                f"{', '.join(self.blocks)}. Convert the file first (dflash-mlx "
                "convert), or use a Q8_0 or Q4_1 build"
            )
        elements, block_bytes = self.blocks[named]
        count = 1
        for dim in dims:
            count *= dim
        if count == 0 or dims[0] % elements or count > self.size * elements:
            raise self.bad(f"gives {quoted(name)} ({named}) the impossible dimensions {dims}")
        n_bytes = count // elements * block_bytes
        return TensorInfo(name, named, tuple(dims[::-1]), n_bytes, offset)

    def data_start(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 16 or alignment % 8:
            raise self.bad(f"has general.alignment {quoted(alignment)}")
        return -(-self.position // alignment) * alignment

    def value(self, kind: int, key: str) -> Any:
        if key == "general.alignment" and kind != _UINT32:
            raise self.bad("has a general.alignment that is not a 32-bit number")
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _NUMBERS:
            raise self.bad(f"gives {quoted(key)} the unknown value type {kind}")
        return self.number(_NUMBERS[kind])

    def array(self, key: str) -> list[Any]:
        kind, length = self.number("I"), self.number("Q")
        if kind == _STRING:
            return [self.text() for _ in range(self.plausible(length, 8, key))]
        if kind not in _NUMBERS:
            raise self.bad(f"gives {quoted(key)} a list of the unknown type {kind}")
        code = _NUMBERS[kind]
        count = self.plausible(length, struct.calcsize(code), key)
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))

    def plausible(self, count: int, each_bytes: int, what: str) -> int:
        self.n_items += count
        if self.n_items > _MAX_ITEMS or count * each_bytes > self.size - self.position:
            raise self.bad(f"announces {count} {shorten(what)}, more than fit into it")
        return count

    def text(self) -> str:
        # a vocabulary is several hundred thousand texts, so this method is written for speed
        begin = self.position + 8
        if begin > self.size:
            raise self.cut()
        (length,) = _LENGTH.unpack_from(self.data, self.position)
        end = self.position = begin + length
        if length > _MAX_ITEMS or end > self.size:
            raise self.bad(f"announces {length} bytes of text, more than fit into it")
        try:
            return str(self.data[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise self.bad(f"holds text that is not UTF-8 at byte {begin}") from error

    def number(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self.take(size))[0]

    def take(self, n_bytes: int) -> bytes:
        end = self.position + n_bytes
        if end > self.size:
            raise self.cut()
        raw = self.data[self.position : end]
        self.position = end
        return raw

    def cut(self) -> BadCheckpoint:
        return self.bad(f"is truncated: its header does not end within its {self.size} bytes")

    def bad(self, what: str) -> BadCheckpoint:
        return BadCheckpoint(
            f"{self.path} {what}; it needs to be a complete GGUF file, download it again"
        )
