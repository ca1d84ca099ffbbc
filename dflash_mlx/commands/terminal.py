"""Terminal output: the model's text on stdout, everything else on stderr; Ctrl-C handling.

It must not know models. A pipe receives the exact text; a screen receives no control characters.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TextIO

INTERRUPTED = 130
"""Exit code of a process that SIGINT ended, as shells report it (128 + 2)."""

_DIM, _BOLD, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_ERASE_LINE = "\r\x1b[K"
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    0x7F: 0x2421
}
_CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Control characters to visible ones: model output must not move the cursor or set a clipboard."""


class Terminal:
    """Writes to this process's stdout and stderr; each may be a screen or a pipe."""

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr
        self.stdout_is_tty = self._out.isatty()
        self.stderr_is_tty = self._err.isatty()
        self._styled = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._status_visible = False
        self._line_open = False

    def write(self, text: str, dim: bool = False) -> None:
        """Write model text to stdout and flush."""
        if not text:
            return
        self.clear_status()
        if self.stdout_is_tty:
            self._line_open = not text.endswith("\n")
            text = self._style(text.translate(_CONTROL_PICTURES), _DIM if dim else "")
        _put(self._out, text)

    def end_line(self, exact: bool) -> None:
        """End the model's text with a newline; on a pipe only if `exact` text is not required."""
        if self.stdout_is_tty and self._line_open:
            _put(self._out, "\n")
            self._line_open = False
        elif not self.stdout_is_tty and not exact:
            _put(self._out, "\n")

    def log(self, text: str = "", dim: bool = False, bold: bool = False) -> None:
        """Write one line to stderr."""
        self.clear_status()
        self._finish_text_line()
        if self.stderr_is_tty:
            text = self._style(text, _DIM if dim else _BOLD if bold else "")
        _put(self._err, text + "\n")

    def show_status(self, text: str) -> None:
        """Show a line on stderr that the next output replaces.

        Does nothing if stderr is not a screen or model text is on the current line.
        """
        if self.stderr_is_tty and not self._line_open and os.environ.get("TERM") != "dumb":
            _put(self._err, _ERASE_LINE + self._style(text[: self.width - 1], _DIM))
            self._status_visible = True

    def clear_status(self) -> None:
        """Remove the line that `show_status` wrote."""
        if self._status_visible:
            _put(self._err, _ERASE_LINE)
            self._status_visible = False

    def write_stderr_raw(self, text: str) -> None:
        """Write to a stderr screen without buffers; safe in a signal handler."""
        if self.stderr_is_tty:
            with suppress(OSError):
                os.write(self._err.fileno(), text.encode())

    def bar(self, share: float, n_columns: int = 24) -> str:
        """Return a horizontal bar for a share from 0 to 1."""
        encoding = self._err.encoding or "ascii"
        full, empty = ("█", "░") if encoding.lower().startswith("utf") else ("#", ".")
        n_full = round(share * n_columns)
        return full * n_full + empty * (n_columns - n_full)

    @property
    def width(self) -> int:
        """Return the number of columns of the screen, 80 if unknown."""
        try:
            return os.get_terminal_size(self._err.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _finish_text_line(self) -> None:
        """Start a new line if model text and stderr share a screen and the text line is open."""
        if self._line_open and self.stderr_is_tty:
            _put(self._out, "\n")
            self._line_open = False

    def _style(self, text: str, code: str) -> str:
        return f"{code}{text}{_RESET}" if code and text and self._styled else text


def exit_now(terminal: Terminal) -> NoReturn:
    """Flush the output and end the process with exit code 130.

    Work on the engine's thread cannot be interrupted, and Python waits for threads at exit, so
    the process ends without waiting.
    """
    for stream in (sys.stdout, sys.stderr):
        # a signal handler may have interrupted this flush; Python refuses to enter it twice
        with suppress(OSError, RuntimeError):
            stream.flush()
    terminal.write_stderr_raw("\n")
    os._exit(INTERRUPTED)


@contextmanager
def on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` on Ctrl-C inside this block instead of raising KeyboardInterrupt.

    Only the main thread can set signal handlers; on other threads the block runs unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _put(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
