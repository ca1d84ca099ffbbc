"""Splits the text of an answer into content, reasoning, tool calls and the marks between them.

It must not know tokens, templates or how a tool call is parsed. No character is lost or added.
"""

from typing import Literal, NamedTuple, Protocol

from dflash_mlx.engine.answer.text import partial_match
from dflash_mlx.loading.answer_format import AnswerFormat, State

SegmentKind = Literal["content", "reasoning", "tool", "mark"]


class Segment(NamedTuple):
    """A piece of an answer. `call` tells the tool calls of an answer apart, from 0."""

    text: str
    kind: SegmentKind
    call: int = -1


class AnswerParser(Protocol):
    """Takes the text of an answer piece by piece and returns segments."""

    def feed(self, text: str) -> list[Segment]:
        """Return the segments that `text` completes."""

    def finish(self) -> list[Segment]:
        """Return what was held back, after the last text."""

    @property
    def kind(self) -> SegmentKind:
        """The kind of the current part."""


def answer_parser(form: AnswerFormat, prompt_end: str, tools: bool = False) -> AnswerParser:
    """Return the parser of one answer.

    Args:
        form: the model's answer format.
        prompt_end: the end of the rendered prompt; it may open a thought.
        tools: whether tool calls are recognised; without tools they are content.
    """
    if form.harmony:
        return HarmonyParser(prompt_end, tools)
    return MarkParser(form, _inside_thought(form, prompt_end), tools)


def _inside_thought(form: AnswerFormat, prompt_end: str) -> bool:
    """Return whether the prompt ends with an opened thought and nothing in it."""
    if form.thinking is None:
        return False
    _, mark, rest = prompt_end.rpartition(form.thinking[0])
    return bool(mark) and not rest.strip()


_KINDS: dict[State, SegmentKind] = {
    "normal": "content",
    "reasoning": "reasoning",
    "tool": "tool",
    "header": "mark",
}


class MarkParser:
    """The parser of formats with opening and closing marks.

    White space next to a mark belongs to the mark: templates write it themselves.
    """

    def __init__(self, form: AnswerFormat, inside_thought: bool, tools: bool) -> None:
        self._edges = _edges(form, tools)
        self._state: State = "reasoning" if inside_thought else form.initial
        self._held = ""  # text that could be the start of a mark, and white space before it
        self._after_mark = inside_thought
        self._may_be_bare = tools and form.bare_json_calls
        self._call = -1
        self._closed = True  # whether the next tool text starts a new call

    @property
    def kind(self) -> SegmentKind:
        """The kind of the current part."""
        return _KINDS[self._state]

    def feed(self, text: str) -> list[Segment]:
        """Return the segments that `text` completes."""
        text, self._held = self._held + text, ""
        if self._may_be_bare and not (text := self._check_bare(text)):
            return []
        segments: list[Segment] = []
        while text:
            edges = self._edges.get(self._state, ())
            found = [(at, mark, to) for mark, to in edges if (at := text.find(mark)) >= 0]
            if not found:
                n_held = partial_match(text, [mark for mark, _ in edges])
                ready = text[: len(text) - n_held]
                if self._state != "tool":
                    ready = ready.rstrip() if edges else ready
                segments += self._segments(ready)
                self._held = text[len(ready) :]
                break
            at, mark, to = min(found, key=lambda item: (item[0], -len(item[1])))
            before = text[:at]
            trimmed = before if self._state == "tool" else before.rstrip()
            segments += self._segments(trimmed)
            segments.append(Segment(before[len(trimmed) :] + mark, "mark"))
            if self._state == "tool":
                self._closed = True
            self._state, self._after_mark = to, True
            text = text[at + len(mark) :]
        return [segment for segment in segments if segment.text]

    def finish(self) -> list[Segment]:
        """Return what was held back, after the last text."""
        held, self._held = self._held, ""
        return [segment for segment in self._segments(held) if segment.text]

    def _segments(self, text: str) -> list[Segment]:
        """Return `text` as segments of the current state, white space after a mark apart."""
        if not text:
            return []
        segments = []
        if self._after_mark and self._state != "tool":
            rest = text.lstrip()
            segments.append(Segment(text[: len(text) - len(rest)], "mark"))
            text = rest
        if text:
            self._after_mark = False
            segments.append(Segment(text, self.kind, self._number()))
        return segments

    def _number(self) -> int:
        if self._state != "tool":
            return -1
        if self._closed:
            self._call, self._closed = self._call + 1, False
        return self._call

    def _check_bare(self, text: str) -> str:
        """Enter the tool state if the answer starts with `{`; hold white space back until then."""
        if not text.strip():
            self._held = text
            return ""
        self._may_be_bare = False
        if self._state == "normal" and text.lstrip().startswith("{"):
            self._state = "tool"
        return text


def _edges(form: AnswerFormat, tools: bool) -> dict[State, tuple[tuple[str, State], ...]]:
    """Return the marks of each state with the state after them."""
    edges: dict[State, list[tuple[str, State]]] = {
        state: list(found) for state, found in form.transitions.items()
    }
    if form.thinking is not None:
        start, end = form.thinking
        # a closing mark without an opening one is a mark too
        edges.setdefault("normal", []).extend([(start, "reasoning"), (end, "normal")])
        edges.setdefault("reasoning", []).append((end, "normal"))
    if form.tool_call is not None and tools:
        start, end = form.tool_call
        if not any(to == "tool" for found in form.transitions.values() for _, to in found):
            edges.setdefault("normal", []).append((start, "tool"))
        if form.thinking is not None:
            edges["reasoning"].append((start, "tool"))  # a call inside a thought is a call
        if end:
            edges["tool"] = [(end, "normal")]
    if not tools:
        edges = {
            state: [(mark, to) for mark, to in found if to != "tool"]
            for state, found in edges.items()
        }
    return {state: tuple(found) for state, found in edges.items()}


_MESSAGE, _END, _START, _CHANNEL = "<|message|>", "<|end|>", "<|start|>", "<|channel|>"


class HarmonyParser:
    """The parser of gpt-oss's channels.

    `<|channel|>analysis` is reasoning, `final` is content, `commentary` is content unless it has a
    recipient (`to=functions.NAME`), which makes it a tool call. The text of a call starts with
    its header, up to and with `<|message|>`. A header is held back until it is complete.
    """

    def __init__(self, prompt_end: str, tools: bool) -> None:
        self._tools = tools
        self._held = ""
        self._kind: SegmentKind = "content"
        self._in_header = False
        self._header_start = ""  # the part of the header that is not held
        self._call = -1
        _, start, opened = prompt_end.rpartition(_START)
        if start and _END not in opened:
            header, message, _ = opened.partition(_MESSAGE)
            self._in_header, self._header_start = True, header
            if message:
                self._enter(header)

    @property
    def kind(self) -> SegmentKind:
        """The kind of the current part."""
        return "mark" if self._in_header else self._kind

    def feed(self, text: str) -> list[Segment]:
        """Return the segments that `text` completes."""
        text, self._held = self._held + text, ""
        segments: list[Segment] = []
        while text:
            marks = (_MESSAGE,) if self._in_header else (_END, _START, _CHANNEL)
            found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
            if not found:
                n_held = len(text) if self._in_header else partial_match(text, marks)
                ready, self._held = text[: len(text) - n_held], text[len(text) - n_held :]
                segments.append(self._segment(ready))
                break
            at, mark = min(found)
            before, text = text[:at], text[at + len(mark) :]
            if self._in_header:
                self._enter(self._header_start + before)
                kind: SegmentKind = "tool" if self._kind == "tool" else "mark"
                segments.append(Segment(before + mark, kind, self._number()))
            else:
                segments += [self._segment(before), Segment(mark, "mark")]
                self._in_header = True
                self._header_start = mark if mark == _CHANNEL else ""
        return [segment for segment in segments if segment.text]

    def finish(self) -> list[Segment]:
        """Return what was held back, after the last text."""
        held, self._held = self._held, ""
        segment = Segment(held, "mark") if self._in_header else self._segment(held)
        return [segment] if held else []

    def _segment(self, text: str) -> Segment:
        return Segment(text, self._kind, self._number())

    def _number(self) -> int:
        return self._call if self._kind == "tool" else -1

    def _enter(self, header: str) -> None:
        """Leave the header: its channel and recipient decide the kind of what follows."""
        self._in_header = False
        channel = header.partition(_CHANNEL)[2].split()
        if "to=" in header and self._tools:
            self._kind, self._call = "tool", self._call + 1
        else:
            self._kind = "reasoning" if channel[:1] == ["analysis"] else "content"
