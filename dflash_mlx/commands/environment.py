"""What a process inherits: standard streams, text encoding, working and temporary folders.

It must not know commands or options.
"""

import codecs
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO, cast

from dflash_mlx.errors import BadRequest


def open_streams() -> None:
    """Replace streams that the parent closed, and read and pipe UTF-8 in an ASCII locale.

    Python sets a closed stream to None. In an ASCII locale (a container, `LC_ALL=POSIX`) text is
    UTF-8 all the same; a screen still gets ASCII.
    """
    sys.stdin = sys.stdin or _null_device("r")
    sys.stdout = sys.stdout or _null_device("w")
    sys.stderr = sys.stderr or _null_device("w")
    for stream in (sys.stdin, sys.stdout):
        screen = stream is sys.stdout and stream.isatty()
        if isinstance(stream, TextIOWrapper) and _is_ascii(stream.encoding) and not screen:
            stream.reconfigure(encoding="utf-8", errors="strict")


def utf8_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments decoded as UTF-8 where an ASCII locale left their bytes undecoded."""
    decoded = []
    for argument in arguments:
        with suppress(UnicodeDecodeError):  # not UTF-8 either; the command names the problem
            argument = os.fsencode(argument).decode("utf-8")
        decoded.append(argument)
    return decoded


def flush_streams() -> None:
    """Flush both outputs; redirect a closed one to the null device so that exit does not fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def check_folders() -> None:
    """Check the working folder, and give MLX's compiler a temporary folder that exists.

    MLX reads TMPDIR and fails if it names a missing folder; Python falls back to /tmp.

    Raises:
        BadRequest: the working folder was deleted, or no temporary folder can be written.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise BadRequest(
            "the working folder no longer exists; change to a folder that does"
        ) from error
    try:
        import tempfile

        os.putenv("TMPDIR", tempfile.gettempdir())
    except OSError as error:
        raise BadRequest("no temporary folder can be written; set TMPDIR to one") from error


def _null_device(mode: str) -> TextIO:
    return cast(TextIO, open(os.devnull, mode, encoding="utf-8"))


def _is_ascii(encoding: str | None) -> bool:
    return encoding is not None and codecs.lookup(encoding).name == "ascii"
