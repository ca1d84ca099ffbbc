"""Tool calls of DeepSeek V3, R1 and V3.1, between marks of special tokens.

V3 and R1 write the arguments in a JSON code block, V3.1 writes them bare. The signature is
mlx-lm's; the formats are those of the models' chat templates.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

tool_call_start = "<｜tool▁calls▁begin｜>"

tool_call_end = "<｜tool▁calls▁end｜>"

HEADER = re.compile(
    r"<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>(?P<first>[^\n<]+)\n```(?:json)?"
    r"|(?P<second>[^\n<]+)<｜tool▁sep｜>)\s*(?=\{)"
)
"""Header of a call, up to the start of its arguments."""

_END = "<｜tool▁call▁end｜>"


def parse_tool_call(text: str, tools: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Return the calls in `text` as name and arguments.

    Raises:
        ValueError: the text has no call, or arguments are not JSON.
    """
    calls = []
    for header in HEADER.finditer(text):
        body = text[header.end() :].partition(_END)[0].strip().removesuffix("```")
        name = (header["first"] or header["second"]).strip()
        calls.append({"name": name, "arguments": json.loads(body, strict=False)})
    if not calls:
        raise ValueError("there is no tool call in the text")
    return calls
