"""Tool calls of gpt-oss: a channel with a recipient, then a JSON object.

`to=functions.NAME ... <|message|>{...}`; the text starts with the header. The signature is
mlx-lm's; the format is that of openai/harmony, docs/format.md.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

tool_call_start = "<|channel|>commentary to="

tool_call_end = "<|call|>"

HEADER = re.compile(r"to=(?:functions\.)?(?P<name>[^\s<]+)[^{]*?<\|message\|>\s*(?=\{)")
"""Header of a call, up to the start of its arguments."""


def parse_tool_call(text: str, tools: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return the call in `text` as name and arguments.

    Raises:
        ValueError: the text has no header of a call, or its arguments are not JSON.
    """
    header = HEADER.search(text)
    if header is None:
        raise ValueError("there is no tool call in the text")
    body = text[header.end() :].strip().removesuffix(tool_call_end)
    return {"name": header["name"], "arguments": json.loads(body, strict=False)}
