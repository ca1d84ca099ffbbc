"""Arguments of calls with one element per argument as JSON text, while they are written.

It must not know events or which model writes which elements.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dflash_mlx.engine.answer.text import partial_match
from dflash_mlx.engine.answer.tool_parsers.call_stream import CallFragment


class ElementFormat(NamedTuple):
    """A format with one element per argument.

    Args:
        call: pattern of the start of a call; its group `name` is the tool's name.
        argument: pattern of the start of an argument; its group `key` is its name.
        argument_end: closes an argument.
        call_end: closes a call; empty if the format separates calls with other marks.
        strips: whether all white space around a value is removed, else one line break.
    """

    call: str
    argument: str
    argument_end: str
    call_end: str
    strips: bool


@dataclass
class _OpenText:
    """A text argument that is still being written: where it starts, and what was passed on."""

    key: str
    start: int
    sent: str = ""


class ElementStream:
    """The stream of formats with one element per argument.

    Text arguments are passed on while they are written, others when their element is closed.

    Args:
        form: the elements of the format.
        parse: parses a whole call.
        text_keys: returns the arguments of a tool that are always texts.
    """

    def __init__(
        self,
        form: ElementFormat,
        parse: Callable[[str], Mapping[str, Any]],
        text_keys: Callable[[str], frozenset[str]],
    ) -> None:
        self._form = form
        self._parse = parse
        self._text_keys = text_keys
        self._text = ""
        self._searched = 0
        self._call = 0
        self._name = ""
        self._sent: dict[str, Any] = {}
        self._open: _OpenText | None = None

    def feed(self, text: str) -> list[CallFragment]:
        """Return the fragments that `text` completes."""
        self._text += text
        fragments: list[CallFragment] = []
        while True:
            if not self._name:
                found = re.search(self._form.call, self._text, re.DOTALL)
                if found is None:
                    return fragments
                self._name = found["name"].strip().strip("\"'")
                fragments.append(CallFragment(self._call, self._name, ""))
            ends = [
                (at + len(mark), mark)
                for mark in (self._form.argument_end, self._form.call_end)
                if mark and (at := self._text.find(mark, self._searched)) >= 0
            ]
            if not ends:
                return fragments + self._fragments(self._open_text())
            self._searched, mark = min(ends)
            if mark == self._form.argument_end:
                fragments += self._fragments(self._closed(self._text[: self._searched]))
                continue
            self._text = self._text[self._searched :]
            self._call, self._name, self._searched, self._sent = self._call + 1, "", 0, {}

    def _fragments(self, pieces: list[str]) -> list[CallFragment]:
        return [CallFragment(self._call, self._name, piece) for piece in pieces if piece]

    def _start(self, key: str) -> str:
        """Return the JSON text in front of an argument's value."""
        return f"{', ' if self._sent else '{'}{_json(key)}: "

    def _open_text(self) -> list[str]:
        """Return the new part of a text argument that is not closed yet."""
        pieces = []
        if self._open is None:
            found = re.compile(self._form.argument, re.DOTALL).search(self._text, self._searched)
            key = found["key"].strip().strip("\"'") if found else ""
            if found is None or key not in self._text_keys(self._name):
                return []
            self._open = _OpenText(key, found.end())
        value = self._text[self._open.start :]
        value = value.lstrip() if self._form.strips else value.removeprefix("\n")
        ready = value[: len(value) - partial_match(value, (self._form.argument_end,))].rstrip()
        if len(ready) <= 4 and "null".startswith(ready.lower()):  # parsers make it null
            return []
        if not self._open.sent:
            pieces.append(f'{self._start(self._open.key)}"')
            self._sent[self._open.key] = None
        pieces.append(_json(ready[len(self._open.sent) :])[1:-1])
        self._open.sent = ready
        return pieces

    def _closed(self, text: str) -> list[str]:
        """Return the arguments of a call up to the closed element, as far as they are new."""
        opened, self._open = self._open, None
        try:
            arguments = dict(self._parse(text + self._form.call_end)["arguments"])
        except Exception:  # noqa: BLE001  the whole call is parsed again at its end
            return []
        pieces = []
        for key, value in arguments.items():
            if opened is not None and opened.sent and key == opened.key:
                rest = str(value).removeprefix(opened.sent)
                pieces.append(f'{_json(rest)[1:-1]}"')
            elif key not in self._sent or self._sent[key] != value:
                pieces.append(f"{self._start(str(key))}{_json(value)}")
            self._sent[key] = value
        return pieces


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
