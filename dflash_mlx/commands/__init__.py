"""The command line: parses options, builds configurations, calls the library, prints results.

The library must not know it. MLX, models and the hub are imported only by commands that use them.
"""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from dflash_mlx.errors import DFlashError

_BAD_USAGE = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""Exit codes of processes that SIGINT and SIGPIPE ended, as shells report them (128 + signal)."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with `argv` (None: `sys.argv[1:]`) and return its exit code.

    A user's error is one line on stderr and exit code 2. A traceback is a bug in this package.
    """
    sys.stdout, sys.stderr = _open(sys.stdout), _open(sys.stderr)
    try:
        from dflash_mlx.commands.app import run

        return run(sys.argv[1:] if argv is None else list(argv))
    except DFlashError as error:
        _report(str(error))
        return _BAD_USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        name = error.filename or "the output"
        _report(f"{name} cannot be written: {error.strerror}; free some disk space")
        return _BAD_USAGE
    finally:
        _flush()


def _open(stream: TextIO | None) -> TextIO:
    """Return `stream`, or the null device if the parent process closed it."""
    return stream if stream is not None else open(os.devnull, "w", encoding="utf-8")


def _report(message: str) -> None:
    """Write an error to stderr as one line."""
    with suppress(OSError):
        sys.stderr.write(f"dflash-mlx: {' '.join(message.split())}\n")


def _flush() -> None:
    """Flush both streams; redirect a closed one to the null device so that exit does not fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
