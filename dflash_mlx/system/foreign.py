"""The boundary to files of other authors: whatever a reader raises becomes one DFlashError.

Libraries raise any exception type for a malformed file, so a list of types is never complete.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint, DFlashError

QUOTED = 200
"""Characters of a foreign value or message that an error quotes: enough to recognise it."""


@contextmanager
def reading(
    file: Path | str,
    what: str,
    remedy: str = "fetch the model again",
    error: type[DFlashError] = BadCheckpoint,
) -> Iterator[None]:
    """Turn every failure of the enclosed reader into one line that names the file.

    The line reads "FILE: WHAT cannot be read (REASON); REMEDY". Our own errors, `MemoryError`,
    `KeyboardInterrupt` and `SystemExit` pass unchanged; the cause is kept for `--debug`.

    Args:
        file: the file or folder being read, named in the message.
        what: what is read from it, for example "the tokenizer".
        remedy: what the user can do.
        error: type to raise.

    Raises:
        DFlashError: of type `error`, when the reader fails.
    """
    try:
        yield
    except (DFlashError, MemoryError):
        raise
    except Exception as cause:
        raise error(f"{file}: {what} cannot be read ({reason(cause)}); {remedy}") from cause


def reason(cause: BaseException) -> str:
    """Return an exception as one line of at most `QUOTED` characters."""
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    if isinstance(cause, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(cause).split())
    return shorten(text or type(cause).__name__)


def quoted(value: Any) -> str:
    """Return `value` as Python writes it, cut to `QUOTED` characters."""
    try:
        return shorten(repr(value))
    except Exception:  # noqa: BLE001  deep nesting, or a foreign __repr__
        return f"a {type(value).__name__}"


def shorten(text: str) -> str:
    """Return `text` cut to `QUOTED` characters, with the number of characters left out."""
    if len(text) <= QUOTED:
        return text
    return f"{text[:QUOTED]}... ({len(text) - QUOTED} more characters)"
