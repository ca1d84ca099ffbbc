"""GGUF files of the llama and qwen3 families, as tensors that are read by row range.

MLX's own reader loads whole tensors and converts BF16 and K-quants to float16.
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
from dflash_mlx.system.foreign import quoted
from dflash_mlx.system.installer import install_command

_FLOATS = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_PACKED = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
"""Bits of the types that are MLX's affine format in another order: they convert without loss.
All other quantized types are dequantized by the gguf package."""
_GROUP_SIZE = 32
"""Elements of a block of these types. Source: ggml-common.h, QK4_0, QK4_1 and QK8_0."""
PartName = Literal["weight", "scales", "biases"]


@dataclass(frozen=True)
class GGUFModel:
    """One file: configuration, tensors by Hugging Face's names, side files built from metadata."""

    config: dict[str, Any]
    tensors: Mapping[str, Rows]
    made: Mapping[str, bytes]


def open_gguf(path: Path) -> GGUFModel:
    """Return the model in a GGUF file; no weight is read.

    Raises:
        BadCheckpoint: the file is truncated, corrupt or incomplete.
        UnsupportedModel: the family, the tokenizer or a tensor type is not supported; the
            message names the gguf package if it would help.
    """
    header = _header(path)
    config, tokenizer, places = describe(header, path)
    file = File(path)
    tensors: dict[str, Rows] = {}
    for name, place in places.items():
        info = header.tensors[f"{name}.weight"]
        for part, rows in _parts(file, info).items():
            tensors[f"{place.name}.{part}"] = _in_huggingface_order(rows, place)
    return GGUFModel(config, tensors, tokenizer_files(tokenizer))


def _header(path: Path) -> GGUFHeader:
    dequantizable = _dequantizable()
    try:
        return read_header(path, {**AS_STORED, "BF16": (1, 2), **dequantizable})
    except UnsupportedModel as error:
        if dequantizable:
            raise
        found = str(error).partition(";")[0]
        raise UnsupportedModel(
            f"{found}, which the gguf package can dequantize: {install_command('gguf>=0.17')}, "
            "then convert again with --dequantize"
        ) from error


def tokenizer_files(vocabulary: GGUFTokenizer) -> dict[str, bytes]:
    """Return the tokenizer's files, by name."""
    with tempfile.TemporaryDirectory() as folder:
        build_tokenizer(vocabulary).save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _dequantizable() -> dict[str, tuple[int, int]]:
    """Return block sizes of the types that the installed gguf package dequantizes, if any."""
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
        return {"weight": DequantizedBlocks(file, info)}
    return {part: BlockRows(file, info, part) for part in ("weight", "scales", "biases")}


@dataclass(frozen=True)
class BlockRows:
    """One part of a tensor in blocks of 32: packed words, scales, or biases."""

    file: File
    info: TensorInfo
    part: PartName

    @property
    def dtype(self) -> str:
        """U32 for packed words; F16 for scales and biases, as in the blocks."""
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
        # ggml's values are signed and MLX's are unsigned, so the bias is the lowest value
        biases: Carrier = scales * np.float16(-128 if kind == "Q8_0" else -8)
        return biases


def _words(blocks: Carrier, kind: str) -> Carrier:
    """Return packed words [rows, groups, words] of blocks [rows, groups, bytes]."""
    if kind == "Q8_0":
        return np.ascontiguousarray(blocks[..., 2:] ^ 0x80).view("<u4")
    values = blocks[..., -16:]
    # the low nibbles of a block hold its first 16 values, the high nibbles its last 16
    elements = np.concatenate([values & 0x0F, values >> 4], axis=-1)
    return np.ascontiguousarray(elements[..., ::2] | elements[..., 1::2] << 4).view("<u4")


@dataclass(frozen=True)
class DequantizedBlocks:
    """A tensor of a type that only the gguf package can dequantize, as float32."""

    file: File
    info: TensorInfo
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dequantized tensor."""
        return self.info.shape

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        blocks = _read_blocks(self.file, self.info, _dequantizable(), start, stop)
        try:
            values: Carrier = dequantize(
                blocks.reshape(stop - start, -1), GGMLQuantizationType[self.info.type]
            )
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.file.path}: {quoted(self.info.name)} has the type {self.info.type}, which "
                "the installed gguf package cannot dequantize; use another build of the model"
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


def _in_huggingface_order(rows: Rows, place: TensorPlace) -> Rows:
    return UnpermutedRows(rows, place.permuted_heads) if place.permuted_heads else rows


@dataclass(frozen=True)
class UnpermutedRows:
    """Rows of q or k in Hugging Face's order, with rotary pairs half a head apart.

    Row 2 i + j of a head in GGUF is row j d/2 + i in Hugging Face's order. Source: llama.cpp's
    converter, `LlamaModel.permute`.
    """

    rows: Rows
    heads: int

    @property
    def dtype(self) -> str:
        """The dtype of `rows`."""
        return self.rows.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `rows`."""
        return self.rows.shape

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`. It reads whole heads."""
        dim = self.shape[0] // self.heads
        first, last = start // dim, -(-stop // dim)
        heads = self.rows.read(first * dim, last * dim).reshape(last - first, dim // 2, 2, -1)
        ordered = heads.swapaxes(1, 2).reshape((last - first) * dim, -1)
        return ordered[start - first * dim : stop - first * dim]
