"""JSON files: objects from model folders, and atomic writes of our own files."""

import json
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.system.atomic import write_atomically


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
    text = json.dumps(value, indent=2) + "\n"
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))
