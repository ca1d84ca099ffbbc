"""Tool calls of Llama 3.1 and later: JSON objects with `name` and `parameters`.

Several calls follow each other, separated by a semicolon. The signature is mlx-lm's.
"""

import json
from collections.abc import Sequence
from typing import Any

tool_call_start = "<|python_tag|>"

tool_call_end = ""

_DECODER = json.JSONDecoder(strict=False)  # models write line breaks in strings


def parse_tool_call(text: str, tools: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Return the calls in `text` as name and arguments.

    Raises:
        ValueError: the text is not a sequence of JSON objects with a name.
    """
    calls = []
    rest = text.strip().removeprefix(tool_call_start).strip()
    while rest:
        found, end = _DECODER.raw_decode(rest)
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            raise ValueError("a tool call needs a JSON object with a name")
        arguments = found.get("parameters", found.get("arguments"))
        calls.append({"name": found["name"], "arguments": arguments})
        rest = rest[end:].lstrip(" \t\r\n;")
    if not calls:
        raise ValueError("there is no tool call in the text")
    return calls
