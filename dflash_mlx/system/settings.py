"""The folder for this program's settings and measurements."""

import os
import sys
from pathlib import Path


def settings_folder() -> Path:
    """Return the settings folder that the operating system's conventions give this user."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dflash-mlx"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "dflash-mlx"
