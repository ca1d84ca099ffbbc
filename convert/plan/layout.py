"""What a source's tensors become: names that the runtime loads, and which may be quantized."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_flatten

from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint

PACKED = (".scales", ".biases")


@dataclass(frozen=True)
class TensorLayout:
    """Tensors under the names of the output.

    `quantizable` maps the path of each module that may be quantized to what its family asks for:
    True for the recipe's choice, False for never, or settings as mlx-lm's predicates give them.
    `cast` says whether a floating tensor takes the dtype of the conversion.
    """

    tensors: Mapping[str, Rows]
    quantizable: Mapping[str, bool | Mapping[str, Any]]
    cast: Callable[[str], bool]

    def is_packed(self, path: str) -> bool:
        """Whether the module at `path` is quantized in the source already."""
        return f"{path}.scales" in self.tensors


def check_complete(tensors: Mapping[str, Rows], model: nn.Module, source: str) -> None:
    """Check that every parameter of `model` is there once, in its shape, and nothing else.

    Packed weights have other shapes; of them only the rows are compared.

    Raises:
        BadCheckpoint: a tensor is missing, left over, or of another shape.
    """
    wanted = dict(tree_flatten(model.parameters()))
    packed = {name.removesuffix(".scales") for name in tensors if name.endswith(".scales")}
    extra = {f"{path}{part}" for path in packed for part in PACKED} - wanted.keys()
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise BadCheckpoint(
            f"{source} lacks {first_names(missing)}, which its configuration asks for; "
            "fetch it again"
        )
    if left := sorted(tensors.keys() - wanted.keys() - extra):
        raise BadCheckpoint(
            f"{source} holds {first_names(left)}, which its configuration has no place for; "
            "check that config.json belongs to these weights"
        )
    for name, array in wanted.items():
        got, need = tensors[name].shape, tuple(array.shape)
        if name.removesuffix(".weight") in packed:
            got, need = got[:-1], need[:-1]
        if got != need:
            raise BadCheckpoint(
                f"{source}: {name} has the shape {list(got)}; its configuration needs {list(need)}"
            )


def first_names(names: list[str]) -> str:
    """The first three of a list of names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
