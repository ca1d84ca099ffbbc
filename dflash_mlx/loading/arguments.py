"""A configuration's values against the types that mlx-lm's arguments declare."""

import importlib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES
from dflash_mlx.system.foreign import quoted

TEXT_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "gemma3": ("gemma3_text", "ModelArgs"),
    "gemma4": ("gemma4_text", "ModelArgs"),
    "kimi_k25": ("deepseek_v3", "ModelArgs"),
    "qwen3_5": ("qwen3_5", "TextModelArgs"),
    "qwen3_5_moe": ("qwen3_5", "TextModelArgs"),
}
"""Module and class of the arguments of the text model, where mlx-lm wraps it."""

_MAX_NUMBER = 2**62
"""Below the range of 64-bit arithmetic."""

_NAMES = {
    bool: "true or false",
    int: "a whole number >= 0",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


def check_argument_types(model_type: str, text: Mapping[str, Any], source: str) -> None:
    """Check the values of a text model's configuration that mlx-lm reads.

    mlx-lm checks no types: a wrong one fails somewhere in a forward pass.

    Raises:
        BadCheckpoint: a value has another type than mlx-lm declares; the key is named.
    """
    module = MLX_LM_MODULES[model_type]
    name, class_name = TEXT_ARGUMENTS.get(module, (module, "ModelArgs"))
    arguments = getattr(importlib.import_module(f"mlx_lm.models.{name}"), class_name)
    for key, hint in get_type_hints(arguments).items():
        value = text.get(key)
        if value is not None and not _fits(value, hint):
            needed = " or ".join(_NAMES[kind] for kind in _NAMES if kind in _kinds(hint))
            raise BadCheckpoint(
                f"{source}: {key} is {quoted(value)}; it needs {needed}. Download the model again"
            )


def _fits(value: Any, hint: Any) -> bool:
    kinds = _kinds(hint)
    if kinds <= {NoneType} or not kinds <= {*_NAMES, NoneType}:
        return True  # an annotation that this check does not know
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int | float) and not abs(value) < _MAX_NUMBER:
        return False  # huge, infinite, or not a number
    if isinstance(value, int | float) and int in kinds:
        # some integers are declared where files have 150000.0
        return value >= 0 and value == int(value)
    if isinstance(value, int):
        return float in kinds
    return type(value) in kinds


def _kinds(hint: Any) -> set[Any]:
    """Return the plain types of an annotation: those of a union, and `dict` for `Dict[str, X]`."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return set().union(*(_kinds(part) for part in get_args(hint)))
    return {origin or hint}
