"""Which folders on this machine the converter made, so that they can be listed.

One small JSON file in the user's settings, a list of paths, newest last. Folders that are gone
are forgotten when the list is next written.
"""

import json
from pathlib import Path

from dflash_mlx.cards.manifest import FILE

_LIST = "converted.json"


def converted(settings: Path) -> tuple[Path, ...]:
    """Return the converted folders that still are there."""
    try:
        listed = json.loads((settings / _LIST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        # the list only helps to find folders; a broken one is begun anew
        return ()
    paths = [Path(item) for item in listed if isinstance(item, str)] if listed else []
    return tuple(path for path in paths if (path / FILE).is_file())


def remember(folder: Path, settings: Path) -> None:
    """Add `folder` to the list."""
    known = [path for path in converted(settings) if path != folder]
    settings.mkdir(parents=True, exist_ok=True)
    text = json.dumps([str(path) for path in [*known, folder]], indent=2)
    (settings / _LIST).write_text(text + "\n", encoding="utf-8")
