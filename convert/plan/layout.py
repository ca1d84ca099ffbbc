"""Tensors of a source under the names that the runtime loads, and which may be quantized."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_flatten

from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.system.foreign import shorten

PACKED = (".scales", ".biases")


@dataclass(frozen=True)
class TensorLayout:
    """Tensors under the names of the output.

    Args:
        tensors: tensors by name.
        quantizable: module path to the family's request: True leaves the choice to the recipe,
            False forbids quantization, and a table holds settings as mlx-lm's predicates return
            them.
        cast: whether the floating-point tensor of this name takes the dtype of the conversion.
    """

    tensors: Mapping[str, Rows]
    quantizable: Mapping[str, bool | Mapping[str, Any]]
    cast: Callable[[str], bool]

    def is_packed(self, path: str) -> bool:
        """Return whether the source holds the module at `path` quantized."""
        return f"{path}.scales" in self.tensors


def check_complete(tensors: Mapping[str, Rows], model: nn.Module, source: str) -> None:
    """Check that `tensors` holds exactly the parameters of `model`, in their shapes.

    The rows of a quantized weight are packed, so its last axis is not compared.

    Raises:
        BadCheckpoint: a tensor is missing, unexpected, or of another shape.
    """
    wanted = dict(tree_flatten(model.parameters()))
    packed = {
        path
        for name in tensors
        if (path := name.removesuffix(".scales")) != name and f"{path}.weight" in wanted
    }
    extra = {f"{path}{part}" for path in packed for part in PACKED} - wanted.keys()
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise BadCheckpoint(
            f"{source} lacks {first_names(missing)}, which config.json requires; download it again"
        )
    if left := sorted(tensors.keys() - wanted.keys() - extra):
        raise BadCheckpoint(
            f"{source} contains {first_names(left)}, which config.json does not describe; check "
            "that config.json belongs to these weights"
        )
    for name, rows in tensors.items():
        if 0 in rows.shape:
            raise BadCheckpoint(
                f"{source}: {name} has the shape {list(rows.shape)} without elements; download it "
                "again"
            )
    for name, array in wanted.items():
        got, need = tensors[name].shape, tuple(array.shape)
        if name.removesuffix(".weight") in packed:
            got, need = got[:-1], need[:-1]
        if got != need:
            raise BadCheckpoint(
                f"{source}: {name} has the shape {list(got)} and config.json requires "
                f"{list(need)}; check that config.json belongs to these weights"
            )


def first_names(names: list[str]) -> str:
    """Return the first three names and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(shorten, names[:3])) + more
