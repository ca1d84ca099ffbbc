"""Paths as users type them. No function here raises, whatever the text."""

import os
from pathlib import Path


def typed_path(text: str | Path) -> Path:
    """Return the path that `text` names, with `~` expanded if that home folder exists."""
    return Path(os.path.expanduser(text))


def is_there(path: Path) -> bool:
    """Return whether `path` exists and is accessible."""
    return os.path.exists(path)


def from_root(reference: str) -> str:
    """Return an existing path as an absolute path, and any other reference unchanged."""
    path = typed_path(reference)
    return str(path.absolute()) if is_there(path) else reference


def bare_name(reference: str) -> str:
    """Return a reference without the folders of this machine: the last part of a local path."""
    path = typed_path(reference)
    return path.absolute().name if is_there(path) else reference
