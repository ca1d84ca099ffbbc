"""Messages to text with a model's chat template, as transformers renders them.

It must not know tokens or the decode loop.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from jinja2 import meta

from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.template_sandbox import BoundedEnvironment
from dflash_mlx.system.foreign import quoted, reason

Message = Mapping[str, Any]
"""`{"role": "user", "content": "..."}`, as chat templates take it."""

ThinkingSwitch = Literal["enable_thinking", "thinking"]
"""Template variable that switches thinking on and off."""

CustomRenderer = Callable[..., Any]
"""A template that mlx-lm has as code: `(messages, tools=, add_generation_prompt=, ...) -> str`."""

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names under which messages carry reasoning; templates read the first or the second."""

_CONTINUE_MARK = "DFLASH_CONTINUES_HERE "
"""Stands at the end of a message that is continued; the prompt ends where it is rendered."""

_MAX_NESTING = 60
"""Nesting of messages and tools: JSON schemas nest a few levels, and templates recurse in them."""

_ENVIRONMENT = BoundedEnvironment()

_PROBE = ({"role": "user", "content": "hi"},)
_PROBE_RESULT = {"role": "tool", "content": "20", "tool_call_id": "call_0000", "name": "weather"}
_PROBE_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class ToolCallForm(NamedTuple):
    """How a template takes tool calls.

    `objects`: arguments as objects, else as JSON text. `null_content`: content null next to a
    call, else an empty text. `rendered`: whether calls are rendered at all.
    """

    objects: bool = True
    null_content: bool = False
    rendered: bool = True


class ChatTemplate:
    """A chat template and what it understands: thinking switch, effort, form of arguments.

    Args:
        source: jinja source, or named sources of which one is "default"; None if the model's
            template is code of mlx-lm.
        special_tokens: names of special tokens with their texts, for example `bos_token`.
        custom: mlx-lm's renderer, used if given.
        defaults: variables for every rendering.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, Any],
        custom: CustomRenderer | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._custom = custom
        self._defaults = dict(defaults or {})

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final: bool = False,
        **variables: Any,
    ) -> str:
        """Return the prompt: the conversation up to where the assistant writes.

        Args:
            messages: the conversation.
            tools: JSON schemas of the tools offered.
            continue_final: whether the assistant continues the last message.
            variables: further variables of the template, such as `enable_thinking`.

        Raises:
            BadRequest: the template refuses the messages, fails, or exceeds a limit.
        """
        null_content = any(map(_calls_alone, messages)) and self.tool_call_form.null_content
        return self._prompt(messages, tools, continue_final, null_content, variables)

    def _prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        continue_final: bool,
        null_content: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the prompt; with `null_content`, content null next to tool calls is kept."""
        chat = [_with_reasoning(_plain(message)) for message in messages]
        for message, given in zip(chat, messages, strict=True):
            if null_content and _calls_alone(given):
                message["content"] = None
        if continue_final:
            chat[-1] = _marked(chat[-1])
        values = {
            **self._special_tokens,
            **self._defaults,
            **_plain(variables, 1),
            "messages": chat,
            "tools": _plain(tools, 1),
            "documents": None,
            "add_generation_prompt": not continue_final,
        }
        try:
            text = self._render(values)
        except Exception as error:
            raise BadRequest(
                f"the chat template refuses these messages ({reason(error)}); change the messages, "
                "or use another build of the model"
            ) from error
        return _cut_at_mark(text, chat[-1]) if continue_final else text

    def _render(self, values: Mapping[str, Any]) -> str:
        if self._custom is not None:
            given = dict(values)
            chat, tools, _ = given.pop("messages"), given.pop("tools"), given.pop("documents")
            if tools is not None:
                given["tools"] = tools
            return str(self._custom(chat, tokenize=False, **given))
        return _ENVIRONMENT.render(self._text(values), values, _size(values))

    def _text(self, values: Mapping[str, Any]) -> str:
        """Return the jinja source to use: models may have one of its own for tools."""
        if not isinstance(self._source, Mapping):
            return self._source or ""
        name = "tool_use" if values["tools"] is not None and "tool_use" in self._source else None
        return self._source[name or "default"]

    @property
    def source(self) -> str:
        """The jinja source of all templates of the model."""
        if isinstance(self._source, Mapping):
            return "\n".join(str(text) for text in self._source.values())
        return self._source or ""

    @cached_property
    def thinking_switch(self) -> ThinkingSwitch | None:
        """The variable that changes the prompt between thinking on and off; None without one."""
        switches: tuple[ThinkingSwitch, ...] = ("enable_thinking", "thinking")
        return next((name for name in switches if self._changes(name, True, False)), None)

    @cached_property
    def has_reasoning_effort(self) -> bool:
        """Whether the variable `reasoning_effort` changes the prompt."""
        return self._changes("reasoning_effort", "low", "high")

    @cached_property
    def tool_call_form(self) -> ToolCallForm:
        """How the template takes the tool calls of an assistant message."""
        for objects in (True, False):
            for null_content in (False, True):
                arguments: Any = {"city": "Paris"} if objects else '{"city": "Paris"}'
                function = {"name": _PROBE_RESULT["name"], "arguments": arguments}
                call = {"id": "call_0000", "type": "function", "function": function}
                content = None if null_content else ""
                answer = {"role": "assistant", "content": content, "tool_calls": [call]}
                try:
                    conversation: list[Message] = [*_PROBE, answer, _PROBE_RESULT]
                    text = self._prompt(conversation, None, False, null_content, {})
                except BadRequest:
                    continue
                if "Paris" in text:
                    return ToolCallForm(objects, null_content)
        return ToolCallForm(rendered=False)

    @cached_property
    def offers_tools(self) -> bool:
        """Whether the template writes the tools it is given into the prompt."""
        name = "get_weather_report"
        function = {"name": name, "description": name, "parameters": _PROBE_SCHEMA}
        try:
            return name in self.render(_PROBE, [{"type": "function", "function": function}])
        except BadRequest:
            return False

    @cached_property
    def variables(self) -> frozenset[str] | None:
        """Names of variables that the template reads; None if its code does not tell."""
        if self._custom is not None:
            return None
        try:
            with _ENVIRONMENT.limits(0):
                return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(self.source)))
        except Exception:  # noqa: BLE001  rendering names the fault
            return None

    def _changes(self, name: str, first: Any, second: Any) -> bool:
        try:
            return self.render(_PROBE, **{name: first}) != self.render(_PROBE, **{name: second})
        except BadRequest:
            return False


def _plain(value: Any, depth: int = 0) -> Any:
    """Return `value` made of JSON types only, without the fields of a message that are None.

    Other objects have methods that the sandbox cannot judge.
    """
    if depth > _MAX_NESTING:
        raise BadRequest(f"the messages are nested deeper than {_MAX_NESTING}; flatten them")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        drop = depth == 0
        return {
            _plain(key, depth + 1): _plain(item, depth + 1)
            for key, item in value.items()
            if not (drop and item is None)
        }
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    raise BadRequest(
        f"the messages hold {quoted(value)}, a {type(value).__name__}; they may hold texts, "
        "numbers, true, false, null, lists and objects"
    )


def _calls_alone(message: Message) -> bool:
    """Return whether a message has tool calls and content null, which some templates test."""
    return bool(message.get("tool_calls")) and message.get("content") is None


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with its reasoning under both names that templates read."""
    found = next((message[key] for key in _REASONING_FIELDS if message.get(key) is not None), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        raise BadRequest("the last message has no text to continue; give it content")
    return {**message, "content": content + _CONTINUE_MARK}


def _cut_at_mark(text: str, message: Mapping[str, Any]) -> str:
    mark = _CONTINUE_MARK.strip()
    at = text.rfind(mark)
    if at < 0:
        raise BadRequest(
            "the chat template does not render the text of the last message, so it cannot be "
            "continued; end the messages with a user message"
        )
    if text[at:].startswith(_CONTINUE_MARK):
        return text[:at]
    return text[:at].rstrip()  # the template strips the message's ends


def _size(value: Any) -> int:
    """Return the bytes of all texts in `value`."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(map(_size, value))
    return 0
