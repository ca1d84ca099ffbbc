"""OpenBLAS from the wheel `scipy-openblas32`, for Linux machines without root access.

The wheel's symbols carry the prefix `scipy_`, so a small library that forwards the names MLX calls
is compiled once, with the compiler that MLX needs on Linux in any case.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from dflash_mlx.errors import DFlashError
from dflash_mlx.system.settings import settings_folder

WHEEL = "scipy-openblas32"
"""Name of the wheel on PyPI; the extra `openblas` installs it."""

_LIBRARY = Path("lib") / "libscipy_openblas.so"

# MLX 0.32 calls these three (nm -D libmlx.so); its LAPACK calls stay with the bundled library.
_FORWARDERS = """
#define ARGUMENTS(T, S) int order, int ta, int tb, int m, int n, int k, S alpha, const T *a, \\
    int lda, const T *b, int ldb, S beta, T *c, int ldc
#define FORWARD(NAME, T, S) \\
  void scipy_##NAME(ARGUMENTS(T, S)); \\
  void NAME(ARGUMENTS(T, S)) { \\
    scipy_##NAME(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); }
FORWARD(cblas_sgemm, float, float)
FORWARD(cblas_dgemm, double, double)
FORWARD(cblas_cgemm, void, const void *)
"""


def library_of_the_wheel() -> Path | None:
    """Return the wheel's OpenBLAS library; None when the wheel is not installed."""
    spec = find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / _LIBRARY
    return library if library.exists() else None


def load(library: Path) -> None:
    """Load `library` so that MLX, imported later, multiplies with it.

    Compiles the forwarding library on first use and keeps it in the settings folder, or in a
    temporary folder when that cannot be written.

    Raises:
        DFlashError: the compiler is missing or fails, or the library cannot be loaded.
    """
    key = hashlib.sha256(f"{library}\n{_FORWARDERS}".encode()).hexdigest()[:12]
    try:
        folder = settings_folder() / "blas"
        folder.mkdir(parents=True, exist_ok=True)
        built = folder / f"forward-{key}.so"
        if not built.exists():
            _compile(library, built)
        _open(built)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="dflash-mlx-") as temporary:
            built = Path(temporary) / "forward.so"
            _compile(library, built)
            _open(built)


def _compile(library: Path, out: Path) -> None:
    """Compile the forwarding library to `out`, which appears whole or not at all."""
    command = ["g++", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-x", "none"]
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    command += [str(library), f"-Wl,-rpath,{library.parent}", "-o", str(partial)]
    try:
        done = subprocess.run(
            command, input=_FORWARDERS, capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError as error:
        raise DFlashError(
            f"{WHEEL} is installed and g++ is not, which MLX needs on Linux; install g++"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DFlashError("g++ took more than 60 s for a small file; use --blas bundled") from error
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[:1]
        raise DFlashError(f"g++ cannot link {library}: {reason}; use --blas bundled")
    os.replace(partial, out)


def _open(built: Path) -> None:
    ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)
