"""What a person typed where a path may stand. Nothing here fails, whatever was typed."""

import os
from pathlib import Path


def typed_path(text: str | Path) -> Path:
    """Return the path that `text` names; a `~` that is nobody's home stays as it was typed."""
    return Path(os.path.expanduser(text))


def is_there(path: Path) -> bool:
    """Whether something is at `path`, and may be looked at."""
    return os.path.exists(path)


def from_root(reference: str) -> str:
    """Return a reference that holds in any folder: a path here from the root, a name as it is."""
    path = typed_path(reference)
    return str(path.absolute()) if is_there(path) else reference


def bare_name(reference: str) -> str:
    """Return what may be published of a reference: a name, and of a path here its last part."""
    path = typed_path(reference)
    return path.absolute().name if is_there(path) else reference
