"""The command line. `main` is its only door: what it lets out is a line and an exit code.

Nothing is imported here before `main` runs, so that even an interrupt while Python is still
importing ends quietly. Models, MLX and the hub are imported by the command that needs them.
"""

import os
import sys
from collections.abc import Sequence

from dflash_mlx.errors import DFlashError

_BAD_USAGE = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""As a shell reports a program that SIGINT or SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with `argv` (None: this process's) and return its exit code.

    A user's error is one line on stderr and exit code 2; a traceback is a bug in here.
    """
    try:
        from dflash_mlx.commands.app import run

        code = run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
    except DFlashError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _abandon_output()
        return _BROKEN_PIPE
    return code


def _refuse(reason: str) -> int:
    """Say in one line why nothing was done."""
    line = " ".join(reason.split())
    try:
        sys.stderr.write(f"dflash-mlx: {line}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        _abandon_output()
    return _BAD_USAGE


def _abandon_output() -> None:
    """Send what is still buffered nowhere, or Python complains about it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
