"""The two ends of the command line: stdout for the model's text, stderr for everything else.

Text goes to a pipe exactly as the model wrote it. On a terminal it may be styled, and control
characters are shown instead of obeyed: a model must not move somebody's cursor.
"""

import os
import sys
from contextlib import suppress
from typing import TextIO

_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_ERASE_LINE = "\r\x1b[K"
_SHOWN_AS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_SHOWN_AS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # the same again, in eight bits


class Terminal:
    """Writes to this process's stdout and stderr. `shown` and `told`: whether they are screens."""

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr
        self.shown = self._out.isatty()
        self.told = self._err.isatty()
        self._styled = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._passing = False
        self._column_open = False

    def write(self, text: str, dim: bool = False) -> None:
        """Write text of the model to stdout, at once."""
        if not text:
            return
        self.erase()
        if self.shown:
            self._column_open = not text.endswith("\n")
            text = self._style(text.translate(_SHOWN_AS), _DIM if dim else "")
        _put(self._out, text)

    def end_line(self, exact: bool) -> None:
        """End the model's text; on a pipe only where `exact` text is not promised."""
        if self.shown and self._column_open:
            _put(self._out, "\n")
            self._column_open = False
        elif not self.shown and not exact:
            _put(self._out, "\n")

    def say(self, text: str = "", dim: bool = False, bold: bool = False) -> None:
        """Write a line to stderr, on a line of its own."""
        self.erase()
        self._leave_text()
        if self.told:
            text = self._style(text, _DIM if dim else _BOLD if bold else "")
        _put(self._err, text + "\n")

    def show(self, text: str) -> None:
        """Show a line that the next one overwrites; nothing beside text or where nobody looks."""
        if self.told and not self._column_open and os.environ.get("TERM") != "dumb":
            _put(self._err, _ERASE_LINE + self._style(text[: self.width - 1], _DIM))
            self._passing = True

    def erase(self) -> None:
        """Take away the line that `show` left."""
        if self._passing:
            _put(self._err, _ERASE_LINE)
            self._passing = False

    def whisper(self, text: str) -> None:
        """Add to the line on stderr from within a signal handler, past all buffers."""
        if self.told:
            with suppress(OSError):
                os.write(self._err.fileno(), text.encode())

    def bar(self, share: float, n_columns: int = 24) -> str:
        """Return a picture of a share from 0 to 1."""
        encoding = self._err.encoding or "ascii"
        full, empty = ("█", "░") if encoding.lower().startswith("utf") else ("#", ".")
        n_full = round(share * n_columns)
        return full * n_full + empty * (n_columns - n_full)

    @property
    def width(self) -> int:
        """Columns of the screen."""
        try:
            return os.get_terminal_size(self._err.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _leave_text(self) -> None:
        """Go to a new line if both ends are one screen and the model's text stands on this one."""
        if self._column_open and self.told:
            _put(self._out, "\n")
            self._column_open = False

    def _style(self, text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if code and text and self._styled else text


def _put(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
