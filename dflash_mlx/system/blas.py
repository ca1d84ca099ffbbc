"""Which BLAS multiplies matrices on Linux. MLX's wheel bundles a slow one.

OpenBLAS, loaded before MLX with its symbols made global, takes the place of the bundled library
for the whole process. That is a host program's decision: importing dflash_mlx never makes it.
"""

import ctypes
import os
import sys

from dflash_mlx.config import Blas
from dflash_mlx.errors import BadRequest, DFlashError

LIBRARY = "libopenblas.so.0"
PACKAGE = "libopenblas0-pthread"
"""Debian's package of the library."""


def use_openblas() -> None:
    """Make MLX multiply with OpenBLAS in this process.

    Raises:
        BadRequest: MLX is imported already, so it is too late.
        DFlashError: the library is not on this machine.
    """
    if blas_in_use() == "openblas":
        return
    if "mlx.core" in sys.modules:
        raise BadRequest("mlx is imported already; call use_openblas() before the first import")
    try:
        ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise DFlashError(
            f"{LIBRARY} is not on this machine; install it (Debian: apt install {PACKAGE}), "
            "or use --blas bundled"
        ) from error


def choose_blas(blas: Blas) -> None:
    """Follow `--blas`: "auto" takes OpenBLAS on Linux where it is installed.

    Raises:
        DFlashError: OpenBLAS was asked for and cannot be had.
    """
    if blas == "bundled" or (blas == "auto" and sys.platform != "linux"):
        return
    try:
        use_openblas()
    except DFlashError:
        if blas == "openblas":
            raise


def blas_in_use() -> str:
    """Return "openblas" or "bundled" on Linux, "accelerate" on macOS."""
    if sys.platform == "darwin":
        return "accelerate"
    try:
        ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD)
    except OSError:
        return "bundled"
    return "openblas"
