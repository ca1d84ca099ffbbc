"""The list of folders that `convert` wrote on this machine, for `dflash-mlx models`.

A JSON list of paths in the settings folder, newest last; removed folders leave it at the next
write.
"""

import json
import os
from pathlib import Path

from dflash_mlx.pairs.manifest import FILE
from dflash_mlx.system.json_file import write_json

_LIST = "converted.json"


def converted(settings: Path) -> tuple[Path, ...]:
    """Return the converted folders that still exist."""
    try:
        listed = json.loads((settings / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # the list is only a convenience, so a damaged one counts as empty
        return ()
    paths = [Path(item) for item in listed if isinstance(item, str)] if listed else []
    return tuple(path for path in paths if os.path.isfile(path / FILE))


def remember(folder: Path, settings: Path) -> None:
    """Add `folder` to the list.

    Raises:
        OSError: the list cannot be written; it is unchanged.
    """
    known = [path for path in converted(settings) if path != folder]
    write_json(settings / _LIST, [str(path) for path in [*known, folder]])
