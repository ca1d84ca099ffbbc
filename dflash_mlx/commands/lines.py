"""Lines that a person types or a pipe brings: edited, remembered and completed on a screen.

The standard library's readline does the editing (GNU's or libedit's, whichever Python has). The
prompt is plain text: colours in it would need marks that come out as garbage elsewhere.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from dflash_mlx.errors import BadRequest

_PROMPT, _MORE = "> ", ". "
_KEPT = 1000
"""Lines of history that are kept."""


class Lines:
    """Reads lines from stdin. A line that ends in a backslash goes on in the next one."""

    def __init__(self, words: Sequence[str], history: Path) -> None:
        self._words = words
        self._history = history
        self.typed = sys.stdin.isatty()
        self._editor = _readline() if self.typed and sys.stdout.isatty() else None
        if self._editor is not None:
            self._prepare(self._editor)

    def read(self) -> str | None:
        """Return the next line, None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C was typed instead.
            BadRequest: a pipe brought something that is no text.
        """
        line = self._ask(_PROMPT)
        while line is not None and self.typed and line.endswith("\\"):
            more = self._ask(_MORE)
            line = f"{line[:-1]}\n{more or ''}"
        return line

    def _ask(self, prompt: str) -> str | None:
        try:
            if self._editor is not None:
                line = input(prompt)
                self._save(self._editor)
                return line
            if self.typed and sys.stderr.isatty():
                sys.stderr.write(prompt)
                sys.stderr.flush()
            line = sys.stdin.readline()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise BadRequest(f"stdin is no UTF-8 text ({error}); convert it first") from error
        return line.rstrip("\r\n") if line else None

    def _save(self, editor: ModuleType) -> None:
        """Keep what was typed for next time, for the user's eyes only."""
        with suppress(OSError):  # a conversation without a place to write is still one
            self._history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_CREAT | os.O_WRONLY, 0o600))
            editor.write_history_file(self._history)

    def _prepare(self, editor: ModuleType) -> None:
        editor.set_history_length(_KEPT)
        with suppress(OSError):  # none yet, or one that another editor wrote in its own form
            editor.read_history_file(self._history)
        libedit = "libedit" in (editor.__doc__ or "")
        editor.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
        editor.set_completer_delims("")
        editor.set_completer(self._complete)

    def _complete(self, begun: str, index: int) -> str | None:
        fitting = [word for word in self._words if begun and word.startswith(begun)]
        return fitting[index] if index < len(fitting) else None


def history_file() -> Path:
    """The file for typed lines, where the operating system wants a program's state."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dflash-mlx" / "history"
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dflash-mlx" / "history"


def _readline() -> ModuleType | None:
    """Python's line editor; some builds come without."""
    try:
        import readline
    except ImportError:
        return None
    return readline
