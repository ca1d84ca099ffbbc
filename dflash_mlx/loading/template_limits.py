"""Limits on what a chat template may do: operations, bytes, time, nesting.

It must not know jinja; `template_sandbox` charges what a template does.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

_MAX_OPERATIONS = 2_000_000
"""Loop passes, calls, attributes and arithmetic: a second or two. 1,000 messages of a published
template take about 100,000."""

_MAX_SECONDS = 5.0
"""Wall-clock limit, for operations that are slow one by one, such as `in` on a long list."""

CALL_OPERATIONS = 8
"""What a call costs, in loop passes: about its ratio in time."""

MAX_DEPTH = 60
"""Nested calls. Templates that render JSON schemas recursively nest as deep as the schema; a call
takes about ten Python frames, and Python's own limit is 1,000 frames."""

MAX_INT_ARGUMENT = 100_000
"""Largest width or count passed to a filter or method: jinja's own limit for ranges."""

MAX_INT_BITS = 4096
"""Largest integer that arithmetic may produce: far above any count, and cheap to compute with."""

_BASE_BYTES = 8 << 20
"""Bytes of one value, and of the output, in addition to four times the input."""

_TOTAL_FACTOR = 16
"""Bytes of all values together, as a multiple of the bytes of one: a template copies a text a few
times, and a template that appends each message to one text copies it once per message."""


class TemplateLimit(Exception):
    """A template did more than a limit allows."""


class Budget:
    """What one rendering has used so far."""

    def __init__(self, input_bytes: int) -> None:
        self.value_bytes = _BASE_BYTES + 4 * input_bytes
        self.depth = 0
        self._operations = _MAX_OPERATIONS
        self._bytes = _TOTAL_FACTOR * self.value_bytes
        self._deadline = time.monotonic() + _MAX_SECONDS

    def spend(self, operations: int, n_bytes: int = 0) -> None:
        """Charge operations and bytes; raise TemplateLimit when a limit is exceeded."""
        self._operations -= operations
        self._bytes -= n_bytes
        if self._operations < 0:
            raise TemplateLimit(f"it takes more than {_MAX_OPERATIONS:,} operations")
        if self._bytes < 0:
            raise TemplateLimit("it produces too much text")
        if self._operations % 64 < operations and time.monotonic() > self._deadline:
            raise TemplateLimit(f"it takes more than {_MAX_SECONDS:g} s")

    def fits(self, n_bytes: int) -> None:
        """Raise TemplateLimit if a value of `n_bytes` is too large."""
        if n_bytes > self.value_bytes:
            raise TemplateLimit("it produces too much text")


class Counted:
    """An iterable that charges every pass of a loop over it, and the text the pass writes."""

    def __init__(self, values: Any, budget: Budget, text_bytes: int) -> None:
        self._values = values
        self._budget = budget
        self._text_bytes = text_bytes

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._budget.spend(1, self._text_bytes)
            yield value

    def __len__(self) -> int:
        return len(self._values)  # loop.length and loop.last; TypeError for generators


_LONG_WIDTH = re.compile(r"\d{6,}")


def check_format(form: str, values: tuple[Any, ...]) -> None:
    """Refuse a format whose width, in the text or in a value, is too large."""
    from_values = "*" in form or form.count("{") > form.count("}") or ":{" in form
    if _LONG_WIDTH.search(form) or (
        from_values and any(isinstance(v, int) and abs(v) > MAX_INT_ARGUMENT for v in values)
    ):
        raise TemplateLimit("it formats with too large a width")


def bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
