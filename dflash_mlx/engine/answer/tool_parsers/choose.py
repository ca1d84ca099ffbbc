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
)
from dflash_mlx.engine.answer.tool_parsers.element_stream import ElementFormat, ElementStream
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

_GLM = ElementFormat(
    r"^(?P<name>[^<]+)<arg_key>",
    r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>",
    "</arg_value>",
    "",
    strips=True,
)
_ELEMENTS = {
    "qwen3_coder": ElementFormat(
        r"<function=(?P<name>[^\s<>]+)[>\s]",
        r"<parameter=(?P<key>[^\s<>]+)>",
        "</parameter>",
        "</function>",
        strips=False,
    ),
    "glm47": _GLM,
    "laguna": _GLM,
    "minimax_m2": ElementFormat(
        r"<invoke name=(?P<name>[^>]+)>",
        r"<parameter name=(?P<key>[^>]+)>",
        "</parameter>",
        "</invoke>",
        strips=True,
    ),
}
"""Formats with an element per argument."""


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
    if form.tool_module in _ELEMENTS:
        parse = partial(_one_call, tool_parser(form), list(tools))
        return ElementStream(_ELEMENTS[form.tool_module], parse, partial(_text_keys, tools))
    return NoStream()


def _one_call(parse: ToolParser, tools: list[Any], text: str) -> Mapping[str, Any]:
    found = parse(text, tools)
    call: Mapping[str, Any] = found[-1] if isinstance(found, list) else found
    return call


def _text_keys(tools: Sequence[Mapping[str, Any]], name: str) -> frozenset[str]:
    """Return the arguments of the tool `name` whose schema is a text and nothing else."""
    for tool in tools:
        function = tool["function"]
        parameters = function.get("parameters")
        if function["name"] == name and isinstance(parameters, Mapping):
            properties = parameters.get("properties")
            fields = properties.items() if isinstance(properties, Mapping) else ()
            return frozenset(
                key
                for key, schema in fields
                if isinstance(schema, Mapping)
                and schema.get("type") == "string"
                and not {"enum", "anyOf", "oneOf", "allOf"} & schema.keys()
            )
    return frozenset()
