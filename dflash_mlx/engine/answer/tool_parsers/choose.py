"""The parser and the stream of a model's tool calls, by its answer format.

mlx-lm's parsers serve the formats they cover. It must not know events or requests.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dflash_mlx.engine.answer.tool_parsers import deepseek, harmony, llama3_json
from dflash_mlx.engine.answer.tool_parsers.call_stream import (
    CallStream,
    HeaderStream,
    NoStream,
    ObjectStream,
    ParameterStream,
)
from dflash_mlx.loading.answer_format import AnswerFormat

ToolParser = Callable[[str, Any], Any]
"""mlx-lm's signature: text and tools to a call or calls, each with name and arguments."""

_HEADERS = {
    "kimi_k2": re.compile(
        r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>.+?):\d+)\s*"
        r"<\|tool_call_argument_begin\|>\s*(?=\{)"
    ),
    "mistral": re.compile(r"(?P<name>[\w-]+)\s*\[ARGS\]\s*(?=\{)"),
}
"""Formats with a header per call, up to the start of its arguments."""

_PARAMETERS = {
    "qwen3_coder": (r"<function=(?P<name>[^\s<>]+)[>\s]", "</parameter>", "</function>"),
    "glm47": (r"^(?P<name>[^<]+)<arg_key>", "</arg_value>", ""),
    "laguna": (r"^(?P<name>[^<]+)<arg_key>", "</arg_value>", ""),
    "minimax_m2": (r"<invoke name=(?P<name>[^>]+)>", "</parameter>", "</invoke>"),
}
"""Formats with an element per argument: start of a call, end of an argument, end of a call."""


def tool_parser(form: AnswerFormat) -> ToolParser:
    """Return the parser of whole calls."""
    ours = {"llama3_json": llama3_json, "harmony": harmony, "deepseek": deepseek}
    if form.tool_format in ours:
        own: ToolParser = ours[form.tool_format].parse_tool_call
        return own
    parser: ToolParser = importlib.import_module(
        f"mlx_lm.tool_parsers.{form.tool_module}"
    ).parse_tool_call
    return parser


def call_stream(form: AnswerFormat, tools: Sequence[Mapping[str, Any]]) -> CallStream:
    """Return the stream of calls while they are written."""
    if form.tool_format == "harmony":
        return HeaderStream(harmony.HEADER)
    if form.tool_format == "deepseek":
        return HeaderStream(deepseek.HEADER)
    if form.tool_format == "llama3_json" or form.tool_module == "json_tools":
        return ObjectStream()
    if form.tool_module in _HEADERS:
        return HeaderStream(_HEADERS[form.tool_module])
    if form.tool_module in _PARAMETERS:
        parse = tool_parser(form)
        return ParameterStream(
            partial(_one_call, parse, list(tools)), *_PARAMETERS[form.tool_module]
        )
    return NoStream()


def _one_call(parse: ToolParser, tools: list[Any], text: str) -> Mapping[str, Any]:
    found = parse(text, tools)
    call: Mapping[str, Any] = found[-1] if isinstance(found, list) else found
    return call
