"""JSON objects that belong to a model, read or refused in one line."""

import json
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
