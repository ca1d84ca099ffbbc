"""Which folders on this machine the converter made, so that they can be listed.

One small JSON file in the user's settings, a list of paths, newest last. Folders that are gone
are forgotten when the list is next written.
"""

import json
import os
from pathlib import Path

from dflash_mlx.pairs.manifest import FILE
from dflash_mlx.system.json_file import write_json

_LIST = "converted.json"


def converted(settings: Path) -> tuple[Path, ...]:
    """Return the converted folders that still are there."""
    try:
        listed = json.loads((settings / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # the list only helps to find folders; a broken one is begun anew
        return ()
    paths = [Path(item) for item in listed if isinstance(item, str)] if listed else []
    return tuple(path for path in paths if os.path.isfile(path / FILE))


def remember(folder: Path, settings: Path) -> None:
    """Add `folder` to the list.

    Raises:
        OSError: the list cannot be written; it is as it was.
    """
    known = [path for path in converted(settings) if path != folder]
    write_json(settings / _LIST, [str(path) for path in [*known, folder]])
