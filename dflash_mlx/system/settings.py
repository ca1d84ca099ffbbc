"""The folder for this program's settings and measurements."""

import os
import sys
from pathlib import Path

_UNWRITABLE = Path(os.devnull) / "dflash-mlx"
"""The folder of a user without a home: nothing exists in it and nothing can be written to it."""


def settings_folder() -> Path:
    """Return the settings folder that the operating system's conventions give this user.

    For a user without a home folder (a container with an unknown user id) it is a path that
    cannot be written, so nothing is stored.
    """
    return _folder(os.environ.get("XDG_CONFIG_HOME"), ".config")


def state_folder() -> Path:
    """Return the folder for state such as the history of typed lines; see `settings_folder`."""
    return _folder(os.environ.get("XDG_STATE_HOME"), ".local/state")


def _folder(base: str | None, default: str) -> Path:
    if base and sys.platform != "darwin":
        return Path(base) / "dflash-mlx"
    try:
        home = Path.home()
    except RuntimeError:
        return _UNWRITABLE
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "dflash-mlx"
    return home / default / "dflash-mlx"
