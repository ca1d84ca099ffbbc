"""JSON files: objects from model folders, and atomic writes of our own files."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BadCheckpoint: the file is missing, unreadable or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadCheckpoint(
            f"{path} is missing; give the folder of a model, or download it again"
        ) from error
    except OSError as error:
        raise BadCheckpoint(
            f"{path} cannot be read ({error.strerror}); check its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is not JSON ({error}); download the model again") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path} does not hold a JSON object; download the model again")
    return value


def write_json(path: Path, value: Any) -> None:
    """Replace the file with `value` atomically; create its folder if necessary.

    Raises:
        OSError: the folder or file cannot be written; an existing file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}", text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
