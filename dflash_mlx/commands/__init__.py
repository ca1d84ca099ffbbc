"""The command line: parses options, builds configurations, calls the library, prints results.

The library must not know it. MLX, models and the hub are imported only by commands that use them.
"""

import errno
import sys
from collections.abc import Sequence
from contextlib import suppress

from dflash_mlx.errors import DFlashError

_BAD_USAGE = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""Exit codes of processes that SIGINT and SIGPIPE ended, as shells report them (128 + signal)."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_DEBUG = "--debug"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with `argv` (None: `sys.argv[1:]`) and return its exit code.

    A user's error is one line on stderr and exit code 2; `--debug` before the command adds the
    traceback. Without it a traceback is a bug in this package.
    """
    from dflash_mlx.commands.environment import flush_streams, open_streams, utf8_arguments

    open_streams()
    arguments = utf8_arguments(sys.argv[1:] if argv is None else argv)
    debug = arguments[:1] == [_DEBUG]
    try:
        from dflash_mlx.commands.app import run

        return run(arguments[1:] if debug else arguments)
    except DFlashError as error:
        if debug:
            sys.excepthook(type(error), error, error.__traceback__)
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
        flush_streams()


def _report(message: str) -> None:
    """Write an error to stderr as one line."""
    with suppress(OSError):
        sys.stderr.write(f"dflash-mlx: {' '.join(message.split())}\n")
