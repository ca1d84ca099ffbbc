"""Reads the program's own state files: validates them, and sets a damaged file aside.

It must not know what any state file contains.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dflash_mlx.system.foreign import reason

T = TypeVar("T")

_MAX_BYTES = 2**26
"""Largest state file that is read: 64 MiB, a thousand times the largest one that is written."""


def read_state(
    file: Path, what: str, parse: Callable[[Any], T], remedy: str = "it is made again"
) -> tuple[T | None, str | None]:
    """Return the parsed contents of a JSON state file, or None and a notice in one line.

    State files can be cut short, edited, or written by another version, so they are read like
    files of others. A file that cannot be parsed is renamed to FILE.damaged, so that the next run
    is not disturbed and its contents are not lost. A missing file gives (None, None).

    Args:
        file: the state file.
        what: what it contains, for the notice, for example "the measured costs".
        parse: turns the JSON value into the result; any exception means that the file is damaged.
        remedy: what happens next, for the notice.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            return None, set_aside(file, what, f"more than {_MAX_BYTES // 2**20} MiB", remedy)
        contents = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # the latter: there is no settings folder
        return None, None
    except OSError as error:
        return None, f"{file}: cannot read {what} ({reason(error)}); {remedy}"
    try:
        return parse(json.loads(contents)), None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a damaged file can raise any type
        return None, set_aside(file, what, reason(error), remedy)


def set_aside(file: Path, what: str, problem: str, remedy: str) -> str:
    """Rename a damaged state file to FILE.damaged; return a notice in one line."""
    damaged = file.with_name(f"{file.name}.damaged")
    try:
        os.replace(file, damaged)
    except OSError as error:
        return f"{file}: cannot read {what} ({problem}), nor move the file ({reason(error)})"
    return f"{file}: cannot read {what} ({problem}); moved to {damaged.name}; {remedy}"
