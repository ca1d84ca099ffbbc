"""Arguments of tool calls as JSON text, while the calls are still being written.

A stream returns fragments; it never decides whether a call is valid. Formats whose arguments are
not written in order of their JSON have no stream.
"""

import json
import re
from collections.abc import Callable
from typing import NamedTuple, Protocol


class CallFragment(NamedTuple):
    """A part of a call: `call` counts the calls of one text from 0, `arguments` is JSON text."""

    call: int
    name: str
    arguments: str
    id: str | None = None


class CallStream(Protocol):
    """Takes the text of tool calls piece by piece."""

    def feed(self, text: str) -> list[CallFragment]:
        """Return the fragments that `text` completes."""


class NoStream:
    """The stream of formats that are parsed whole."""

    def feed(self, text: str) -> list[CallFragment]:
        """Return nothing."""
        return []


class _JSONValue:
    """Follows one JSON value; control characters in strings are escaped, as JSON demands."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._started = False

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return the value's part of `text`, and the text after its end (None while it is open)."""
        out: list[str] = []
        for index, letter in enumerate(text):
            if self._in_string:
                out.append(letter if letter >= " " else json.dumps(letter)[1:-1])
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._in_string = False
                    if self._depth == 0:
                        return "".join(out), text[index + 1 :]
                continue
            if self._depth == 0 and (letter in ",}]" or (letter.isspace() and self._started)):
                return "".join(out), text[index:]
            if self._depth == 0 and letter.isspace():
                continue
            self._started = True
            out.append(letter)
            if letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return "".join(out), text[index + 1 :]
        return "".join(out), None


class HeaderStream:
    """The stream of formats with a header that names the tool, then a JSON object.

    Args:
        header: matches a header up to the `{` of the arguments. Its groups are `name`, or `first`
            and `second` as alternatives, and optionally `id`.
    """

    def __init__(self, header: re.Pattern[str]) -> None:
        self._header = header
        self._rest = ""
        self._value: _JSONValue | None = None
        self._call = -1
        self._name = ""
        self._id: str | None = None

    def feed(self, text: str) -> list[CallFragment]:
        """Return the fragments that `text` completes."""
        self._rest += text
        fragments = []
        while self._rest:
            if self._value is None:
                found = self._header.search(self._rest)
                if found is None:
                    break
                groups = found.groupdict()
                self._name = next(g for k, g in groups.items() if g and k != "id").strip()
                self._id = groups.get("id")
                self._call, self._value = self._call + 1, _JSONValue()
                self._rest = self._rest[found.end() :]
            piece, rest = self._value.feed(self._rest)
            fragments.append(CallFragment(self._call, self._name, piece, self._id))
            self._rest = rest or ""
            if rest is not None:
                self._value = None
        return fragments


_ARGUMENT_KEYS = ("arguments", "parameters")


class ObjectStream:
    """The stream of formats whose calls are JSON objects with a name and arguments."""

    def __init__(self) -> None:
        self._rest = ""
        self._step: Callable[[], bool] = self._outside
        self._value = _JSONValue()
        self._text = ""  # of the current key or value
        self._key = ""
        self._call = -1
        self._name = ""
        self._pending = ""  # arguments that came before the name
        self._fragments: list[CallFragment] = []

    def feed(self, text: str) -> list[CallFragment]:
        """Return the fragments that `text` completes."""
        self._rest += text
        self._fragments = []
        while self._step():
            pass
        return [fragment for fragment in self._fragments if fragment.arguments]

    def _outside(self) -> bool:
        at = self._rest.find("{")
        self._rest = self._rest[at + 1 :] if at >= 0 else ""
        if at < 0:
            return False
        self._call, self._name, self._pending = self._call + 1, "", ""
        self._step = self._before_key
        return True

    def _before_key(self) -> bool:
        self._rest = self._rest.lstrip(" \t\r\n,")
        if not self._rest:
            return False
        if self._rest[0] == "}":
            self._rest, self._step = self._rest[1:], self._outside
            return True
        self._value, self._text, self._step = _JSONValue(), "", self._in_key
        return True

    def _in_key(self) -> bool:
        if not self._read():
            return False
        self._key, self._step = self._text.strip('"'), self._before_value
        return True

    def _before_value(self) -> bool:
        self._rest = self._rest.lstrip()
        if not self._rest:
            return False
        self._rest = self._rest.removeprefix(":")
        self._value, self._text, self._step = _JSONValue(), "", self._in_value
        return True

    def _in_value(self) -> bool:
        n_before = len(self._text)
        done = self._read()
        if self._key in _ARGUMENT_KEYS and self._text.startswith("{"):
            self._pending += self._text[n_before:]
        if done and self._key == "name":
            try:
                self._name = str(json.loads(self._text))
            except ValueError:
                self._step = self._stopped
        if self._name and self._pending:
            self._fragments.append(CallFragment(self._call, self._name, self._pending))
            self._pending = ""
        if done and self._step == self._in_value:
            self._step = self._before_key
        return done

    def _stopped(self) -> bool:
        return False

    def _read(self) -> bool:
        """Read on in the current key or value; return whether it is complete."""
        piece, rest = self._value.feed(self._rest)
        self._text += piece
        self._rest = rest or ""
        return rest is not None and bool(piece or self._text)
