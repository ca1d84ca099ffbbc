"""Lines from a terminal or a pipe: editing, history and completion with Python's `readline`.

It must not know what the lines mean. GNU readline and libedit are both supported. The prompt has
no colour codes: libedit would print the markers that readline needs around them.
"""

import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from dflash_mlx.errors import BadRequest
from dflash_mlx.system.settings import state_folder

_PROMPT, _CONTINUATION_PROMPT = "> ", ". "
_BACKSLASH = "\\"
_HISTORY_LENGTH = 1000
"""Lines; bash keeps 500 to 2000 by default. The whole file is rewritten after each line."""

_PASTE_GAP_S = 0.05
"""Seconds between two pasted lines at most; a person needs longer to type the shortest line."""


class LineInput:
    """Reads lines from stdin.

    On a screen a line that ends in a backslash continues on the next, and pasted lines are one
    text: GNU readline reads a bracketed paste as a whole, and lines that arrive within
    `_PASTE_GAP_S` of each other belong together where the terminal or libedit has no brackets.
    `words` are the commands, for completion; a command is never joined with other lines.
    """

    def __init__(self, words: Sequence[str], history: Path) -> None:
        self._words = words
        self._commands = {word.strip() for word in words}
        self._history = history
        self._next: str | None = None
        self.interactive = sys.stdin.isatty()
        self._editor = _readline() if self.interactive and sys.stdout.isatty() else None
        if self._editor is not None:
            self._prepare(self._editor)

    def read(self) -> str | None:
        """Return the next text, None at the end of input.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
            BadRequest: a pipe delivered bytes that are not UTF-8.
        """
        line, self._next = self._next, None
        line = self._ask(_PROMPT) if line is None else line
        if not self.interactive or line is None or self._is_command(line):
            return line
        while line.endswith(_BACKSLASH) or self._more_is_waiting():
            more = self._ask(_CONTINUATION_PROMPT)
            if more is None:
                break
            if self._is_command(more):
                self._next = more
                break
            line = f"{line.removesuffix(_BACKSLASH)}\n{more}"
        return line

    def _is_command(self, line: str) -> bool:
        return bool(line.strip()) and line.split()[0] in self._commands

    def _more_is_waiting(self) -> bool:
        """Return whether another line is in the terminal's buffer, as after a paste."""
        return bool(select.select([sys.stdin], [], [], _PASTE_GAP_S)[0])

    def _ask(self, prompt: str) -> str | None:
        try:
            if self._editor is not None:
                line = input(prompt)
                self._save(self._editor)
                return line
            if self.interactive and sys.stderr.isatty():
                sys.stderr.write(prompt)
                sys.stderr.flush()
            line = sys.stdin.readline()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise BadRequest(f"stdin is not UTF-8 text ({error}); convert it first") from error
        return line.rstrip("\r\n") if line else None

    def _save(self, editor: ModuleType) -> None:
        """Write the history file, readable by its owner only."""
        with suppress(OSError):  # chat works without a writable history
            self._history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_CREAT | os.O_WRONLY, 0o600))
            editor.write_history_file(self._history)

    def _prepare(self, editor: ModuleType) -> None:
        editor.set_history_length(_HISTORY_LENGTH)
        with suppress(OSError):  # missing, or written by the other editor in its own format
            editor.read_history_file(self._history)
        if "libedit" in (editor.__doc__ or ""):
            editor.parse_and_bind("bind ^I rl_complete")
        else:
            editor.parse_and_bind("tab: complete")
            editor.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
        editor.set_completer_delims("")
        editor.set_completer(self._complete)

    def _complete(self, prefix: str, index: int) -> str | None:
        matches = [word for word in self._words if prefix and word.startswith(prefix)]
        return matches[index] if index < len(matches) else None


def history_file() -> Path:
    """Return the file with the typed lines of earlier chats."""
    return state_folder() / "history"


def _readline() -> ModuleType | None:
    """Return the `readline` module, None in a Python that was built without it."""
    try:
        import readline
    except ImportError:
        return None
    return readline
