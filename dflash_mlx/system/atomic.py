"""Replaces a file in one step: after a crash or a full disk it holds the old or the new content."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from dflash_mlx.errors import DFlashError


def replace_file(file: Path, write: Callable[[Path], object], remedy: str) -> None:
    """Write a temporary file next to `file` with `write`, flush it, and rename it to `file`.

    Args:
        file: the file to create or replace; its folder exists.
        write: writes all content to the path that it is given.
        remedy: what the user can do when the write fails, for the error message.

    Raises:
        DFlashError: the disk is full or the file system refuses; `file` is unchanged.
    """
    try:
        write_atomically(file, write)
    except (OSError, RuntimeError) as error:
        raise DFlashError(
            f"{file} cannot be written ({error}); its earlier content is unchanged; {remedy}"
        ) from error


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file next to `file` with `write`, flush it, and rename it to `file`.

    Raises:
        OSError, RuntimeError: what `write` or the file system raised; `file` is unchanged and the
            temporary file is gone.
    """
    partial = file.with_name(f".partial-{secrets.token_hex(4)}-{file.name}")
    try:
        write(partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
