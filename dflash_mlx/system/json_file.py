"""JSON files: a model's, read or refused in one line, and ours, replaced whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BadCheckpoint: the file is missing, unreadable or no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadCheckpoint(
            f"{path} is missing; give the folder of a model, or fetch it again"
        ) from error
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}; correct that") from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is no JSON ({error}); fetch the model again") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path} holds no JSON object; fetch the model again")
    return value


def write_json(path: Path, value: Any) -> None:
    """Put `value` in place of the file, whose folder is made; on an error all is as it was.

    Raises:
        OSError: the folder cannot be made, or the file not be written.
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
