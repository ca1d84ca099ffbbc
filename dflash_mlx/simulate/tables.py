"""Reads the data files of the simulator: TOML, one table per item."""

import tomllib
from importlib import resources
from typing import Any


def read_tables(name: str) -> dict[str, Any]:
    """Return the tables of `data/NAME.toml`."""
    file = resources.files("dflash_mlx.simulate") / "data" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
