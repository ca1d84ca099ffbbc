"""A conversation as a file: JSON for programs, Markdown for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadRequest


def save_transcript(path: Path, messages: Sequence[Mapping[str, Any]], model: str) -> None:
    """Write `messages` to a new file: JSON if it is called so, else Markdown.

    Raises:
        BadRequest: there is nothing to save, the file exists, or it cannot be written.
    """
    if not messages:
        raise BadRequest("the conversation is empty; there is nothing to save yet")
    if path.suffix == ".json":
        text = json.dumps({"model": model, "messages": messages}, indent=2, ensure_ascii=False)
    else:
        parts = [f"## {message['role']}\n\n{message['content']}" for message in messages]
        text = "\n\n".join([f"# {model}", *parts])
    made = False
    try:
        with path.open("x", encoding="utf-8") as file:
            made = True
            file.write(text + "\n")
    except FileExistsError as error:
        raise BadRequest(f"{path} exists; give another name") from error
    except OSError as error:
        if made:
            path.unlink(missing_ok=True)  # a part would stand in the way of the whole
        raise BadRequest(f"{path} cannot be written ({error.strerror}); give another") from error
