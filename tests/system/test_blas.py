"""Which BLAS library is chosen."""

import subprocess
import sys

import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.system import blas, openblas_wheel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate")

USE = """
from dflash_mlx.system import blas
blas.LIBRARY = "libopenblas-that-is-not-installed.so.0"
blas.choose_blas("auto")
print(blas.blas_in_use())
"""


def test_auto_takes_the_wheel_where_the_system_has_no_library(tmp_path):
    """`make chat` without root read prompts at 9 tokens a second."""
    wheel = openblas_wheel.library_of_the_wheel() is not None
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, env=home)
    assert done.stdout.strip() == ("openblas" if wheel else "bundled"), done.stderr


def test_without_any_openblas_both_commands_are_named(monkeypatch):
    """Advice that needs root is no advice on a shared machine."""
    monkeypatch.setattr(blas, "LIBRARY", "libopenblas-that-is-not-installed.so.0")
    monkeypatch.setattr(openblas_wheel, "library_of_the_wheel", lambda: None)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    with pytest.raises(DFlashError, match=r"apt install \S+, or without root: .*scipy-openblas32"):
        blas.use_openblas()
    blas.choose_blas("auto")
