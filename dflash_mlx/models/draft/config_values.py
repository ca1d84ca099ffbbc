"""Typed access to a draft's configuration; errors name the key and the file."""

import math
from collections.abc import Mapping
from typing import Any

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.system.foreign import quoted

_MAX_NUMBER = 1e30
"""Far above every value of a published draft."""


class ConfigValues:
    """Checks values of a configuration.

    Args:
        config: the section that the values come from.
        source: the file, named in errors.
    """

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config = config
        self.source = source

    def whole(self, key: str, value: Any, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        """Return a whole number from `minimum` to `maximum`."""
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.wrong(key, value, f"a whole number >= {minimum} and <= {maximum}")
        return value

    def optional_whole(self, key: str, value: Any) -> int | None:
        """Return a whole number > 0, or None."""
        return None if value is None else self.whole(key, value)

    def number(self, key: str, value: Any, above: float = -math.inf) -> float:
        """Return a finite number greater than `above`."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # huge integers of JSON do not fit into a float
        if not number or not above < value < _MAX_NUMBER:
            need = "a number" if above == -math.inf else f"a number > {above:g}"
            raise self.wrong(key, value, need)
        return float(value)

    def optional_number(self, key: str, value: Any) -> float | None:
        """Return a finite number, or None."""
        return None if value is None else self.number(key, value)

    def flag(self, key: str, value: Any) -> bool:
        """Return a boolean; absent is false."""
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return bool(value)

    def optional_flag(self, key: str, value: Any) -> bool | None:
        """Return a boolean, or None."""
        return None if value is None else self.flag(key, value)

    def ids(self, key: str, value: Any) -> tuple[int, ...]:
        """Return the layer numbers of a list that is not empty."""
        if not isinstance(value, list | tuple) or not value:
            raise self.wrong(key, value, "a list of layer numbers")
        return tuple(self.whole(key, item, minimum=0) for item in value)

    def section(self, key: str) -> Mapping[str, Any]:
        """Return a table of the configuration, empty where it is absent."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, value, "a table")
        return value or {}

    def wrong(self, key: str, value: Any, need: str) -> BadCheckpoint:
        """Return the error for a value that is not what is needed."""
        got = "missing" if value is None else quoted(value)
        return BadCheckpoint(
            f"{self.source}: {key} is {got}; it needs {need}. Use another draft, or --draft none"
        )
