"""PyTorch `.bin` checkpoints, as weights only: a pickle is never executed here.

torch reads what is where; the values are read from the file by row range. Without torch there is
no safe reader and we say how to get it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_mlx.convert.safetensors import File, StoredRows
from dflash_mlx.convert.sources.torch_zip import map_address
from dflash_mlx.convert.tensors import Carrier, Rows, row_count, row_width
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.loading.safetensors import is_plain_name
from dflash_mlx.system.installer import install_command

INDEX = "pytorch_model.bin.index.json"
_DTYPES = {
    **{"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"},
    **{"torch.int64": "I64", "torch.int32": "I32", "torch.bool": "BOOL"},
}


@dataclass(frozen=True)
class TorchRows:
    """A tensor that does not lie in its file row by row, read through torch."""

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
        BadCheckpoint: files are missing, unreadable, or hold more than weights.
        UnsupportedModel: torch is not installed.
    """
    tensors: dict[str, Rows] = {}
    for name in _shards(folder):
        for tensor, rows in read_file(folder / name).items():
            if tensor in tensors:
                raise BadCheckpoint(f"{folder} holds {tensor!r} twice; fetch it again")
            tensors[tensor] = rows
    return tensors


def _shards(folder: Path) -> list[str]:
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpoint(f"{index} is no index of shards; fetch it again") from error
        for name in names:
            if not isinstance(name, str) or not is_plain_name(name):
                raise BadCheckpoint(
                    f"{index} names the file {name!r}; a shard lies beside its index. Do not "
                    "trust this checkpoint"
                )
            if not (folder / name).is_file():
                raise BadCheckpoint(f"{folder} lacks the shard {name}; fetch it again")
        return names
    names = sorted(path.name for path in folder.glob("pytorch_model*.bin")) or sorted(
        path.name for path in folder.glob("*.bin") if path.name != "training_args.bin"
    )
    if len(names) != 1:
        raise BadCheckpoint(
            f"{folder} holds no safetensors and {len(names)} .bin files without {INDEX}; "
            "fetch it again"
        )
    return names


def read_file(path: Path) -> dict[str, Rows]:
    """Return the tensors of one file by name.

    Raises:
        BadCheckpoint: the file is unreadable, or holds more than weights.
        UnsupportedModel: torch is not installed.
    """
    import pickle

    try:
        import torch
    except ImportError as error:
        raise UnsupportedModel(
            f"{path} holds PyTorch weights, which need torch to be read safely: "
            f"{install_command('torch>=2.4')}; or give a safetensors build"
        ) from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "mmap can only be used" in why:
            raise BadCheckpoint(
                f"{path} is in the format from before torch 1.6, which is not read in pieces and "
                "may hold code, which is never run here; load it with torch.load(..., "
                "weights_only=True) and save it again"
            ) from error
        raise BadCheckpoint(
            f"{path} is no PyTorch file of weights only ({why[:120]}); it is truncated, or holds "
            "code, which is never run here"
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(torch.is_tensor(item) for item in state.values()):
        raise BadCheckpoint(f"{path} holds something other than tensors by name; give weights")
    base, file = map_address(path, state.values()), File(path)
    tensors: dict[str, Rows] = {}
    for name, tensor in state.items():
        dtype, shape = _DTYPES.get(str(tensor.dtype)), tuple(tensor.shape)
        if dtype is None:
            raise UnsupportedModel(f"{path}: {name!r} is {tensor.dtype}; save it as bfloat16")
        if base is not None and tensor.is_contiguous():
            tensors[name] = StoredRows(file, tensor.data_ptr() - base, dtype, shape)
        else:
            tensors[name] = TorchRows(tensor.detach(), dtype, shape)
    return tensors
