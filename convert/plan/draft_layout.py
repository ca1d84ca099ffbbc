"""Tensors of a draft under the runtime's names, from any published layout."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import mlx.nn as nn

from dflash_mlx.convert.plan.layout import TensorLayout, check_complete
from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.tensor_names import runtime_name

if TYPE_CHECKING:
    from dflash_mlx.models.draft.dflash import DraftModel


def draft_layout(tensors: Mapping[str, Rows], model: nn.Module, source: str) -> TensorLayout:
    """Return the layout of a draft whose files hold `tensors`, for the module `model`.

    Raises:
        BadCheckpoint: a tensor is missing, unexpected or misshapen, or two have one name.
    """
    renamed: dict[str, Rows] = {}
    for name, rows in tensors.items():
        ours = runtime_name(name)
        if ours in renamed:
            raise BadCheckpoint(
                f"{source} contains {ours!r} under two names; download one build of the draft"
            )
        if ours:
            renamed[ours] = rows
    check_complete(renamed, model, source)
    quantizable = {
        path: True for path, module in model.named_modules() if hasattr(module, "to_quantized")
    }
    return TensorLayout(renamed, quantizable, lambda name: True)


def draft_module(config: DraftConfig, names: Iterable[str]) -> "DraftModel":
    """Return the runtime's module for a draft whose files hold `names`; nothing is evaluated."""
    # mlx-lm's layers take most of a second to import
    from dflash_mlx.models.draft.build import draft_model

    return draft_model(config, {runtime_name(name) for name in names})
