"""Messages as clients send them to messages as chat templates take them.

The only place that knows the dialects of clients. It must not know tokens or templates' text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_mlx.engine.events import ToolCall
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.chat_template import ToolCallForm
from dflash_mlx.system.foreign import quoted

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Roles of OpenAI's API, old and new, with the role that templates know."""

_TEXT_PARTS = ("text", "input_text", "output_text")
_REASONING_PARTS = ("thinking", "reasoning", "reasoning_text", "reasoning.text")

_RAW_ARGUMENTS = "arguments"
"""The key under which arguments that are not a JSON object are passed on, as text."""


def normalise_messages(messages: Sequence[Any], form: ToolCallForm) -> list[dict[str, Any]]:
    """Return the conversation in the form that chat templates take.

    Roles are mapped to system, user, assistant and tool. Text parts are joined, reasoning goes to
    `reasoning_content`, and arguments of tool calls take the form of the template. System
    messages at the start become one.

    Args:
        messages: mappings, or objects with `model_dump` such as the `openai` package's.
        form: how the template takes tool calls.

    Raises:
        BadRequest: a message or a part that no chat template can render, named in the error.
    """
    found = [_normalised(message, index, form) for index, message in enumerate(messages)]
    names = {
        call["id"]: call["function"]["name"]
        for message in found
        for call in message.get("tool_calls", ())
        if call.get("id")
    }
    for message in found:
        if message["role"] == "tool" and not message.get("name"):
            name = names.get(message.get("tool_call_id"))
            message.update({"name": name} if name else {})
    return _with_one_system_message(found)


def plain_message(message: Any) -> Any:
    """Return a message object of a client library as a mapping; anything else unchanged."""
    dump = getattr(message, "model_dump", None)
    return dump() if callable(dump) else message


def join_consecutive(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with consecutive user or assistant messages joined by a blank line.

    Some templates demand that roles alternate. Messages with tool calls stay as they are.
    """
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else {}
        same = message["role"] == last.get("role") and message["role"] in ("user", "assistant")
        if same and not last.get("tool_calls") and not message.get("tool_calls"):
            joined[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def assistant_message(
    content: str, reasoning: str, tool_calls: Sequence[ToolCall] = ()
) -> dict[str, Any]:
    """Return an answer as a message of the conversation, in OpenAI's form."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["tool_calls"] = [call.as_message() for call in tool_calls]
    return message


def tool_schemas(tools: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Return tools as `{"type": "function", "function": {"name", ...}}`, with keys as given.

    Raises:
        BadRequest: a tool that is not a function, has no name, or asks for strict arguments.
    """
    return tuple(_tool_schema(plain_message(tool), f"tool {n}") for n, tool in enumerate(tools))


def _tool_schema(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise BadRequest(f"{where} is {quoted(kind)}; it needs the type function")
    function = tool.get("function")
    if function is None:  # the form of the Responses API
        function = {key: value for key, value in tool.items() if key != "type"}
        tool = {}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{where} is {quoted(function)}; it needs a function with a name")
    if function.get("strict"):
        raise BadRequest(f"{where} has strict true, which is not supported; leave it out")
    return {**tool, "type": "function", "function": dict(function)}


def _normalised(message: Any, index: int, form: ToolCallForm) -> dict[str, Any]:
    where = f"message {index}"
    message = plain_message(message)
    if not isinstance(message, Mapping):
        raise BadRequest(f"{where} is {quoted(message)}; it needs an object with role and content")
    asked = message.get("role")
    role = _ROLES.get(asked) if isinstance(asked, str) else None
    if role is None:
        raise BadRequest(
            f"{where} has the role {quoted(asked)}; it needs one of {', '.join(_ROLES)}"
        )
    result = {key: value for key, value in message.items() if key not in _REPLACED}
    content, reasoning = _content(message.get("content"), where)
    result |= {"role": role, "content": content}
    if reasoning := reasoning or _reasoning(message, where):
        result["reasoning_content"] = reasoning
    if calls := _tool_calls(message, where, form):
        result["tool_calls"] = calls
        if form.null_content and not content:
            result["content"] = None
    return result


_REPLACED = frozenset(
    ("role", "content", "reasoning_content", "reasoning", "reasoning_details", "thinking")
) | {"tool_calls", "function_call", "refusal", "audio", "annotations"}
"""Fields of a message that are rewritten, or that no chat template reads."""


def _content(content: Any, where: str) -> tuple[str, str]:
    """Return the text and the reasoning of a message's content."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list | tuple):
        raise BadRequest(f"{where} has content {quoted(content)}; it needs text or a list of parts")
    texts: list[str] = []
    reasoning: list[str] = []
    for number, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _TEXT_PARTS:
            texts.append(_part_text(part, ("text",), f"{where}, part {number}"))
        elif kind in _REASONING_PARTS:
            keys = ("thinking", "text", "reasoning")
            reasoning.append(_part_text(part, keys, f"{where}, part {number}"))
        else:
            raise BadRequest(
                f"{where}, part {number} is {quoted(kind or part)}; this model reads text, so it "
                f"needs one of {', '.join(_TEXT_PARTS)}"
            )
    return "".join(texts), "".join(reasoning)


def _part_text(part: Mapping[str, Any], keys: Sequence[str], where: str) -> str:
    text = next((part[key] for key in keys if part.get(key) is not None), "")
    if not isinstance(text, str):
        raise BadRequest(f"{where} holds {quoted(text)}; it needs text")
    return text


def _reasoning(message: Mapping[str, Any], where: str) -> str:
    """Return the reasoning of an assistant's message from any of the fields clients use."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        if (value := message.get(key)) is not None:
            if isinstance(value, str):
                return value
            raise BadRequest(f"{where} has {key} {quoted(value)}; it needs text")
    details = message.get("reasoning_details")
    if not isinstance(details, list | tuple):
        return ""
    texts = [part.get("text") for part in details if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def _tool_calls(message: Mapping[str, Any], where: str, form: ToolCallForm) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):
        calls = [{"function": message["function_call"]}]
    if not calls:
        return []
    if not isinstance(calls, list | tuple):
        raise BadRequest(f"{where} has tool_calls {quoted(calls)}; it needs a list")
    return [_tool_call(call, f"{where}, tool call {n}", form) for n, call in enumerate(calls)]


def _tool_call(call: Any, where: str, form: ToolCallForm) -> dict[str, Any]:
    call = plain_message(call)
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise BadRequest(
            f"{where} is {quoted(call)}; it needs function.name and function.arguments"
        )
    arguments = _arguments(function.get("arguments"), form)
    kept = {key: value for key, value in call.items() if key in ("id", "index")}
    return {**kept, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: Any, form: ToolCallForm) -> Any:
    """Return arguments as an object, or as JSON text where the template wants text."""
    if not form.objects:
        return arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            parsed = None
        return parsed if isinstance(parsed, dict) else {_RAW_ARGUMENTS: arguments}
    return {} if arguments is None else arguments


def _with_one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the system messages at the start joined by a blank line."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    if count < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:count])
    return [{**messages[0], "content": text}, *messages[count:]]
