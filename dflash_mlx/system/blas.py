"""Selects the BLAS library that MLX uses on Linux, where its wheel bundles a slow one.

OpenBLAS with global symbols, loaded before MLX, replaces the bundled library for the whole
process; only the host program may decide that, so importing dflash_mlx never does.
"""

import ctypes
import os
import sys
from pathlib import Path

from dflash_mlx.config import Blas
from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.system import openblas_wheel
from dflash_mlx.system.installer import install_command

LIBRARY = "libopenblas.so.0"
PACKAGE = "libopenblas0-pthread"
"""Debian package of the library."""


def use_openblas() -> None:
    """Make MLX use OpenBLAS in this process; call it before the first `import mlx`.

    The system's library is used if there is one, else that of the wheel `scipy-openblas32`.

    Raises:
        BadRequest: MLX is already imported.
        DFlashError: OpenBLAS is not installed.

    Examples:
        >>> dflash_mlx.use_openblas()  # doctest: +SKIP
        >>> import mlx.core as mx
    """
    if blas_in_use() == "openblas":
        return
    if "mlx.core" in sys.modules:
        raise BadRequest("mlx is already imported; call use_openblas() before the first import")
    try:
        ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        library = openblas_wheel.library_of_the_wheel()
        if library is None:
            raise DFlashError(
                f"OpenBLAS is not installed; {openblas_advice()}, or use --blas bundled"
            ) from error
        openblas_wheel.load(library)


def openblas_advice() -> str:
    """Return the commands that install OpenBLAS, with and without root access."""
    return f"run: apt install {PACKAGE}, or without root: {install_command(openblas_wheel.WHEEL)}"


def choose_blas(blas: Blas) -> None:
    """Apply `--blas`: "auto" uses OpenBLAS on Linux if it is installed.

    Raises:
        DFlashError: "openblas" was requested and cannot be loaded.
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
    libraries = [LIBRARY, openblas_wheel.library_of_the_wheel()]
    return "openblas" if any(_is_loaded(library) for library in libraries) else "bundled"


def _is_loaded(library: str | Path | None) -> bool:
    """Return whether this process has loaded `library`."""
    if library is None:
        return False
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
