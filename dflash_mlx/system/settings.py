"""The folder in which this program keeps what it learns about a user's machine."""

import os
import sys
from pathlib import Path


def settings_folder() -> Path:
    """The folder for this user's settings, where the operating system wants it."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dflash-mlx"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "dflash-mlx"
