"""Turns a dataclass of options into the flags of a command, which is the form typer needs.

It must not know which options exist.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, cast, get_type_hints


def as_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command(options)` as a function with one parameter per field of its dataclass."""
    hints = get_type_hints(command, include_extras=True)
    kind = hints["options"]
    assert is_dataclass(kind), command
    types = get_type_hints(kind, include_extras=True)

    def with_flags(**values: Any) -> None:
        command(cast(Callable[..., Any], kind)(**values))

    parameters = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default if item.default is not MISSING else inspect.Parameter.empty,
            annotation=types[item.name],
        )
        for item in fields(kind)
    ]
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {item.name: item.annotation for item in parameters}
    return with_flags


def flag_of(field_name: str) -> str:
    """Return the flag of an option field: `top_p` to `--top-p`."""
    return "--" + field_name.replace("_", "-")
