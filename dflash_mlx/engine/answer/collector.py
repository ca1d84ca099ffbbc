"""Segments of an answer to typed events, content, reasoning and parsed tool calls.

It must not know tokens or requests. A call that does not parse becomes text.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_mlx.engine.answer.parser import Segment
from dflash_mlx.engine.answer.tool_parsers.choose import call_stream, tool_parser
from dflash_mlx.engine.events import (
    AnswerEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDropped,
)
from dflash_mlx.loading.answer_format import AnswerFormat

_CLOSINGS = ("", "}", "{}")
"""What may be missing from streamed arguments when a call is complete."""


@dataclass
class _Streamed:
    """A call of which deltas were sent."""

    index: int
    id: str
    name: str
    arguments: str = ""


class AnswerCollector:
    """Makes the events of one answer and collects its content, reasoning and tool calls.

    Args:
        form: the model's answer format.
        tools: JSON schemas of the tools offered; without tools there are no calls.
    """

    def __init__(self, form: AnswerFormat, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.tool_calls: list[ToolCall] = []
        self._form = form
        self._tools = tools
        self._declared = {tool["function"]["name"] for tool in tools}
        self._parse = tool_parser(form) if tools else None
        self._text = ""  # of the open calls
        self._call = -1
        self._after_mark = False
        self._next_index = 0
        self._streamed: dict[int, _Streamed] = {}
        self._stream = call_stream(form, tools)

    def add(self, segments: Sequence[Segment]) -> list[AnswerEvent]:
        """Return the events of new segments."""
        events: list[AnswerEvent] = []
        for segment in segments:
            if self._call >= 0 and segment.call != self._call:
                events += self._close()
            if segment.kind == "tool":
                events += self._tool_text(segment)
            elif segment.kind == "content":
                events.append(self._content_delta(segment.text))
            elif segment.kind == "reasoning":
                self._reasoning.append(segment.text)
                events.append(ReasoningDelta(segment.text))
            else:
                start = self._form.tool_call[0] if self._form.tool_call else ""
                self._after_mark = bool(start) and start in segment.text
        return events

    def finish(self) -> list[AnswerEvent]:
        """Return the last events, after the last segment."""
        return self._close() if self._call >= 0 else []

    @property
    def content(self) -> str:
        """The content so far."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning)

    def _content_delta(self, text: str) -> ContentDelta:
        self._content.append(text)
        return ContentDelta(text)

    def _tool_text(self, segment: Segment) -> list[AnswerEvent]:
        if self._call < 0:
            self._call, self._text, self._streamed = segment.call, "", {}
            self._stream = call_stream(self._form, self._tools)
        self._text += segment.text
        events: list[AnswerEvent] = []
        for call, name, arguments, model_id in self._stream.feed(segment.text):
            if not self._is_call(name):
                continue
            first = call not in self._streamed
            if first:
                self._streamed[call] = _Streamed(self._take_index(), model_id or _new_id(), name)
            sent = self._streamed[call]
            sent.arguments += arguments
            events.append(ToolCallDelta(sent.index, sent.id, name if first else None, arguments))
        return events

    def _close(self) -> list[AnswerEvent]:
        """Parse the open calls and return what their deltas lack, or their text as content."""
        self._call = -1
        events: list[AnswerEvent] = []
        calls = self._parsed()
        for position, (name, arguments, model_id) in enumerate(calls):
            sent = self._streamed.pop(position, None)
            rest = _missing(sent, name, arguments)
            if sent is not None and rest is None:
                events.append(ToolCallDropped(sent.index))
            if sent is None or rest is None:
                sent = _Streamed(self._take_index(), model_id or _new_id(), name)
                rest = json.dumps(arguments, ensure_ascii=False)
                events.append(ToolCallDelta(sent.index, sent.id, name, rest))
            elif rest:
                events.append(ToolCallDelta(sent.index, sent.id, None, rest))
            self.tool_calls.append(ToolCall(sent.id, name, arguments))
        events += [ToolCallDropped(sent.index) for sent in self._streamed.values()]
        self._streamed = {}
        if not calls and (text := self._without_marks()):
            events.append(self._content_delta(text))
        self._after_mark = False
        return events

    def _parsed(self) -> list[tuple[str, dict[str, Any], str | None]]:
        """Return name, arguments and the model's id of each call; empty if one does not parse."""
        assert self._parse is not None, "calls are recognised only where tools are offered"
        try:
            found = self._parse(self._text, list(self._tools))
            calls = found if isinstance(found, list) else [found]
            parsed = [(call["name"], _object(call["arguments"]), call.get("id")) for call in calls]
        except Exception:  # noqa: BLE001  parsers raise any type for text of a model
            return []
        return parsed if all(self._is_call(name) for name, _, _ in parsed) else []

    def _is_call(self, name: Any) -> bool:
        """Return whether a call of `name` counts: bare JSON is a call of declared tools only."""
        if not isinstance(name, str) or not name:
            return False
        bare = self._form.bare_json_calls and not self._after_mark
        return not bare or name in self._declared

    def _without_marks(self) -> str:
        """Return the text of a call that did not parse, without the marks of the format."""
        _, message, body = self._text.partition("<|message|>")
        text = body if self._form.harmony and message else self._text
        marks = {*self._form.text_tokens, *(self._form.tool_call or ())} - {""}
        for mark in marks:
            text = text.replace(mark, "")
        return text.strip()

    def _take_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _object(arguments: Any) -> dict[str, Any]:
    """Return arguments as an object of JSON values.

    Raises:
        ValueError: they are something else.
    """
    if isinstance(arguments, str):
        arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ValueError("arguments need to be an object")
    plain: dict[str, Any] = json.loads(json.dumps(arguments, default=str))
    return plain


def _missing(sent: _Streamed | None, name: str, arguments: dict[str, Any]) -> str | None:
    """Return what the deltas lack to be `arguments`; None if they cannot become them."""
    if sent is None or sent.name != name:
        return None
    for closing in _CLOSINGS:
        try:
            if json.loads(sent.arguments + closing) == arguments:
                return closing
        except ValueError:
            continue
    return None
