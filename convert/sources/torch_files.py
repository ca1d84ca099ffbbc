"""PyTorch `.bin` and `.pt` files, as tensors that are read by row range.

torch reads the structure with `weights_only=True`, so a pickle is never executed. torch is
optional; without it these files are refused.
"""

import json
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_mlx.convert.safetensors import File, StoredRows
from dflash_mlx.convert.tensors import Carrier, Rows, n_bytes, row_count, row_width
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.loading.safetensors import is_plain_name
from dflash_mlx.system.foreign import quoted, reading, reason
from dflash_mlx.system.installer import install_command

INDEX = "pytorch_model.bin.index.json"
_DTYPES = {
    **{"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"},
    **{"torch.int64": "I64", "torch.int32": "I32", "torch.bool": "BOOL"},
}
_REMEDY = "download the model again"


@dataclass(frozen=True)
class TorchRows:
    """A tensor whose rows are not contiguous in its file, read through torch."""

    tensor: Any
    dtype: str
    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        import torch

        rows = self.tensor.reshape(row_count(self.shape), row_width(self.shape))[start:stop]
        rows = rows.contiguous()
        values: Carrier = (rows.view(torch.int16) if self.dtype == "BF16" else rows).numpy()
        return values.view(np.uint16) if self.dtype == "BF16" else values


def read_folder(folder: Path) -> dict[str, Rows]:
    """Return the tensors of a folder's `.bin` files by name.

    Raises:
        BadCheckpoint: files are missing or unreadable, or hold more than weights.
        UnsupportedModel: torch is not installed.
    """
    tensors: dict[str, Rows] = {}
    for name in _shards(folder):
        for tensor, rows in read_file(folder / name).items():
            if tensor in tensors:
                raise BadCheckpoint(f"{folder} contains tensor {quoted(tensor)} twice; {_REMEDY}")
            tensors[tensor] = rows
    return tensors


def _shards(folder: Path) -> list[str]:
    index = folder / INDEX
    if index.is_file():
        with reading(index, "the index of shards", _REMEDY):
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        for name in names:
            if not isinstance(name, str) or not is_plain_name(name):
                raise BadCheckpoint(
                    f"{index} names the file {quoted(name)}; it needs names of files in its own "
                    "folder. Do not trust this checkpoint"
                )
            if not (folder / name).is_file():
                raise BadCheckpoint(f"{folder} lacks the shard {name}; {_REMEDY}")
        return names
    names = sorted(path.name for path in folder.glob("pytorch_model*.bin")) or sorted(
        path.name for path in folder.glob("*.bin") if path.name != "training_args.bin"
    )
    if len(names) != 1:
        raise BadCheckpoint(
            f"{folder} contains no safetensors files and {len(names)} .bin files without {INDEX}; "
            f"{_REMEDY}"
        )
    return names


def read_file(path: Path) -> dict[str, Rows]:
    """Return the tensors of one file by name.

    Raises:
        BadCheckpoint: the file is unreadable, holds more than weights, or declares more bytes
            than it has.
        UnsupportedModel: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise UnsupportedModel(
            f"{path} contains PyTorch weights, and reading them safely needs torch: "
            f"{install_command('torch>=2.4')}; or use a safetensors build of the model"
        ) from error
    file = File(path)
    storages = archive_storages(path)
    state = _load(path)
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(torch.is_tensor(item) for item in state.values()):
        raise BadCheckpoint(
            f"{path} contains objects other than tensors; it needs a state dict, save the model's "
            "state_dict()"
        )
    with reading(path, "the PyTorch tensors", _REMEDY):
        for name, tensor in state.items():
            _check_tensor(str(name), tensor, path, file.size)
        base = _map_address(state.values(), storages, file.size)
        return {str(name): _rows(tensor, file, base) for name, tensor in state.items()}


def _load(path: Path) -> Any:
    """Return the content of a PyTorch file, its storages mapped and not read."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError:
        raise
    except Exception as error:  # torch and pickle raise any type here
        if "mmap can only be used" in str(error):
            raise BadCheckpoint(
                f"{path} is in the format from before torch 1.6, which cannot be read in pieces "
                "and may contain code; code is never run here. Load it with torch.load(..., "
                "weights_only=True) and save it again"
            ) from error
        raise BadCheckpoint(
            f"{path} is not a PyTorch file of weights only ({reason(error)}); it is truncated, or "
            f"contains code, which is never run here. Use a safetensors build, or {_REMEDY}"
        ) from error


def _check_tensor(name: str, tensor: Any, path: Path, file_bytes: int) -> None:
    """Check that a tensor is dense, of a known type, and not larger than its file."""
    import torch

    dtype = _DTYPES.get(str(tensor.dtype))
    if dtype is None:
        raise UnsupportedModel(
            f"{path}: tensor {quoted(name)} has the type {tensor.dtype}; save it as bfloat16"
        )
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise UnsupportedModel(
            f"{path}: tensor {quoted(name)} is not a dense tensor; save it as a dense tensor"
        )
    needed = n_bytes(dtype, tuple(tensor.shape))
    if needed > file_bytes:
        raise BadCheckpoint(
            f"{path}: tensor {quoted(name)} declares {needed} bytes, and the file has "
            f"{file_bytes}; {_REMEDY}"
        )


def _rows(tensor: Any, file: File, base: int | None) -> Rows:
    dtype, shape = _DTYPES[str(tensor.dtype)], tuple(tensor.shape)
    if base is not None and tensor.is_contiguous():
        return StoredRows(file, tensor.data_ptr() - base, dtype, shape)
    return TorchRows(tensor.detach(), dtype, shape)


def _map_address(
    tensors: Iterable[Any], storages: Mapping[int, int], file_bytes: int
) -> int | None:
    """Return the address at which torch mapped the file; None if it cannot be determined.

    Pages of a map count as resident memory once they are touched, so rows are read at file
    positions instead. The address is the one that puts every storage onto an entry of the archive.
    """
    found = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    used = sorted((address, size) for address, size in found.items() if size)
    if not used or any(size > file_bytes for _, size in used):
        return None
    for position in sorted(storages):
        base: int = used[0][0] - position
        if all(storages.get(address - base, -1) >= size for address, size in used):
            return base
    return None


def archive_storages(path: Path) -> dict[int, int]:
    """Return the size of every storage of an archive by its position in the file.

    torch's format is a zip archive whose entries `.../data/N` are storages, uncompressed. A file
    in another format gives an empty table.

    Raises:
        BadCheckpoint: entries are compressed or declare more bytes than the file has. torch would
            allocate the declared size before it reads an entry.
    """
    if not zipfile.is_zipfile(path):
        return {}
    storages, file = {}, File(path)
    with reading(path, "the archive of PyTorch tensors", _REMEDY):
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > file.size:
                raise BadCheckpoint(
                    f"{path}: entry {quoted(entry.filename)} is compressed or declares "
                    f"{entry.file_size} bytes, and the file has {file.size}; save the weights "
                    "with torch.save"
                )
            if "/data/" in entry.filename:
                # the central directory does not contain the length of the entry's own header
                name_bytes, extra_bytes = struct.unpack(
                    "<HH", file.read(entry.header_offset + 26, 4)
                )
                position = entry.header_offset + 30 + name_bytes + extra_bytes
                storages[position] = entry.file_size
    return storages
