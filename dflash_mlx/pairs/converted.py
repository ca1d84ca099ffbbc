"""The list of folders that `convert` wrote on this machine, for `dflash-mlx models`.

A JSON list of paths in the settings folder, newest last; removed folders leave it at the next
write.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_mlx.pairs.manifest import FILE
from dflash_mlx.system.json_file import write_json
from dflash_mlx.system.state_file import read_state

_LIST = "converted.json"


def converted(
    settings: Path, on_notice: Callable[[str], None] = lambda text: None
) -> tuple[Path, ...]:
    """Return the converted folders that still exist.

    A damaged list is set aside, and `on_notice` receives a line about it.
    """
    paths, notice = read_state(
        settings / _LIST, "the list of converted folders", _paths, "a new list is started"
    )
    if notice:
        on_notice(notice)
    return tuple(path for path in paths or () if os.path.isfile(path / FILE))


def remember(folder: Path, settings: Path) -> None:
    """Add `folder` to the list.

    Raises:
        OSError: the list cannot be written; it is unchanged.
    """
    known = [path for path in converted(settings) if path != folder]
    write_json(settings / _LIST, [str(path) for path in [*known, folder]])


def _paths(listed: Any) -> list[Path]:
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise TypeError("not a list of paths")
    return [Path(item) for item in listed]
