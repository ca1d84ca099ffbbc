"""The command line: parse options, build configurations, call the library, print.

`main` is imported by nothing of the library, which must not know the command line. It imports
models, MLX and the hub only when a command needs them.
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
"""As a shell reports a program that SIGINT or SIGPIPE ended."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with `argv` (None: this process's) and return its exit code.

    A user's error is one line on stderr and exit code 2; a traceback is a bug in here.
    """
    sys.stdout, sys.stderr = _open(sys.stdout), _open(sys.stderr)
    try:
        from dflash_mlx.commands.app import run

        return run(sys.argv[1:] if argv is None else list(argv))
    except DFlashError as error:
        _say(str(error))
        return _BAD_USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _say(f"{error.filename or 'the output'} cannot be written: {error.strerror}; make room")
        return _BAD_USAGE
    finally:
        _flush()


def _open(stream: TextIO | None) -> TextIO:
    """Return `stream`, or a place for what nobody wants where the caller closed it."""
    return stream if stream is not None else open(os.devnull, "w", encoding="utf-8")


def _say(reason: str) -> None:
    """Say in one line why nothing was done, if anybody can still hear it."""
    with suppress(OSError):
        sys.stderr.write(f"dflash-mlx: {' '.join(reason.split())}\n")


def _flush() -> None:
    """Let go of what is buffered; what nobody takes goes nowhere, or Python would complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
