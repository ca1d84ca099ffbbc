"""GGUF files of the llama and qwen3 families, as tensors that are read by row range.

Q8_0, Q4_0 and Q4_1 are MLX's affine format in another order, so their rows become weight, scales
and biases without loss. F32, F16 and BF16 are floats as they stand. Every other type is unpacked
by the `gguf` package. MLX's own reader is not used: it loads whole tensors, and turns BF16 and
K-quants into float16 without a word.
"""

import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dflash_mlx.convert.safetensors import File, StoredRows
from dflash_mlx.convert.tensors import Carrier, Rows, row_width
from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.gguf.header import AS_STORED, GGUFHeader, TensorInfo, read_header
from dflash_mlx.gguf.read import TensorPlace, describe
from dflash_mlx.gguf.tokenizer import GGUFTokenizer, build_tokenizer
from dflash_mlx.system.installer import install_command

_FLOATS = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_PACKED = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_GROUP_SIZE = 32
PartName = Literal["weight", "scales", "biases"]


@dataclass(frozen=True)
class GGUFModel:
    """One file: configuration, tensors by their usual names, and side files made from metadata."""

    config: dict[str, Any]
    tensors: Mapping[str, Rows]
    made: Mapping[str, bytes]


def open_gguf(path: Path) -> GGUFModel:
    """Return the model in a GGUF file, no weight read.

    Raises:
        BadCheckpoint: the file is truncated, corrupt or incomplete.
        UnsupportedModel: another family or tokenizer, or a type that needs the gguf package.
    """
    header = _header(path)
    config, tokenizer, places = describe(header, path)
    file = File(path)
    tensors: dict[str, Rows] = {}
    for name, place in places.items():
        info = header.tensors[f"{name}.weight"]
        for part, rows in _parts(file, info).items():
            tensors[f"{place.name}.{part}"] = _in_order(rows, place)
    return GGUFModel(config, tensors, tokenizer_files(tokenizer))


def _header(path: Path) -> GGUFHeader:
    unpackable = _unpackable()
    try:
        return read_header(path, {**AS_STORED, "BF16": (1, 2), **unpackable})
    except UnsupportedModel as error:
        if unpackable:
            raise
        found = str(error).partition(";")[0]
        raise UnsupportedModel(
            f"{found}, which the gguf package unpacks: {install_command('gguf>=0.17')}, and "
            "convert again with --dequantize"
        ) from error


def tokenizer_files(vocabulary: GGUFTokenizer) -> dict[str, bytes]:
    """Return the files of the tokenizer that a vocabulary describes."""
    with tempfile.TemporaryDirectory() as folder:
        build_tokenizer(vocabulary).save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _unpackable() -> dict[str, tuple[int, int]]:
    """The types that the gguf package can unpack here; none where it is not installed."""
    if importlib.util.find_spec("gguf") is None:
        return {}
    from gguf.constants import GGML_QUANT_SIZES

    return {
        kind.name: sizes
        for kind, sizes in GGML_QUANT_SIZES.items()
        if kind.name not in _FLOATS and kind.name not in _PACKED and kind.name[0] in "QITM"
    }


def _parts(file: File, info: TensorInfo) -> dict[PartName, Rows]:
    if info.type in _FLOATS:
        return {"weight": StoredRows(file, info.offset, _FLOATS[info.type], info.shape)}
    if info.type not in _PACKED:
        return {"weight": UnpackedRows(file, info)}
    return {part: BlockRows(file, info, part) for part in ("weight", "scales", "biases")}


@dataclass(frozen=True)
class BlockRows:
    """One part of a tensor in blocks of 32: packed values, scales, or biases."""

    file: File
    info: TensorInfo
    part: PartName

    @property
    def dtype(self) -> str:
        """Packed words for the weight, halves for the rest, as the blocks hold them."""
        return "U32" if self.part == "weight" else "F16"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of this part."""
        per_word = 32 // _PACKED[self.info.type] if self.part == "weight" else _GROUP_SIZE
        return (*self.info.shape[:-1], self.info.shape[-1] // per_word)

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        blocks = _read_blocks(self.file, self.info, AS_STORED, start, stop)
        kind = self.info.type
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
        if self.part == "scales":
            return scales
        if self.part == "weight":
            return _words(blocks, kind).reshape(stop - start, -1)
        if kind == "Q4_1":
            return np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
        # values are stored around zero and MLX counts from the lowest
        middle: Carrier = scales * np.float16(-128 if kind == "Q8_0" else -8)
        return middle


def _words(blocks: Carrier, kind: str) -> Carrier:
    """Return packed words [rows, groups, words] of blocks [rows, groups, bytes]."""
    if kind == "Q8_0":
        return np.ascontiguousarray(blocks[..., 2:] ^ 0x80).view("<u4")
    values = blocks[..., -16:]
    # a block's first 16 values are the low halves of its bytes, its last 16 the high ones
    elements = np.concatenate([values & 0x0F, values >> 4], axis=-1)
    return np.ascontiguousarray(elements[..., ::2] | elements[..., 1::2] << 4).view("<u4")


@dataclass(frozen=True)
class UnpackedRows:
    """A tensor of a type that only the gguf package can unpack, as float32."""

    file: File
    info: TensorInfo
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the unpacked tensor."""
        return self.info.shape

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        blocks = _read_blocks(self.file, self.info, _unpackable(), start, stop)
        try:
            values: Carrier = dequantize(
                blocks.reshape(stop - start, -1), GGMLQuantizationType[self.info.type]
            )
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.file.path}: {self.info.name!r} is stored as {self.info.type}, which the "
                "gguf package cannot unpack; take another build of the model"
            ) from error
        return values


def _read_blocks(
    file: File, info: TensorInfo, sizes: Mapping[str, tuple[int, int]], start: int, stop: int
) -> Carrier:
    """Return the blocks of rows `start` to `stop`, [rows, blocks of a row, bytes of a block]."""
    elements, block_bytes = sizes[info.type]
    row_bytes = row_width(info.shape) // elements * block_bytes
    raw = file.read(info.offset + start * row_bytes, (stop - start) * row_bytes)
    return np.frombuffer(raw, np.uint8).reshape(stop - start, -1, block_bytes)


def _in_order(rows: Rows, place: TensorPlace) -> Rows:
    return UnpermutedRows(rows, place.permuted_heads) if place.permuted_heads else rows


@dataclass(frozen=True)
class UnpermutedRows:
    """Rows of q or k with each head's rotary pairs half a head apart again.

    GGUF's row 2 i + j of a head is row j d/2 + i for everybody else. Source: llama.cpp's
    converter, `LlamaModel.permute`.
    """

    rows: Rows
    heads: int

    @property
    def dtype(self) -> str:
        """As stored."""
        return self.rows.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return self.rows.shape

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`; whole heads are read for it."""
        dim = self.shape[0] // self.heads
        first, last = start // dim, -(-stop // dim)
        heads = self.rows.read(first * dim, last * dim).reshape(last - first, dim // 2, 2, -1)
        ordered = heads.swapaxes(1, 2).reshape((last - first) * dim, -1)
        return ordered[start - first * dim : stop - first * dim]
