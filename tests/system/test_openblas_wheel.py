"""OpenBLAS without root access: the wheel's prefixed symbols under the names that MLX calls."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.system import openblas_wheel

PRODUCT = """
from pathlib import Path
from dflash_mlx.system import openblas_wheel
openblas_wheel.load(openblas_wheel.library_of_the_wheel())
import mlx.core as mx
a, b = mx.random.normal((65, 33)), mx.random.normal((33, 129))
import numpy as np
assert np.allclose(np.array(a @ b), np.array(a) @ np.array(b), atol=1e-4)
maps = Path("/proc/self/maps").read_text()
assert "libscipy_openblas" in maps and "forward" in maps
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate")
def test_mlx_multiplies_with_the_wheels_library(tmp_path):
    """MLX's own wheel brings a BLAS of 3 to 5 GFLOP/s, and prompts were read at 9 tokens/s."""
    if openblas_wheel.library_of_the_wheel() is None:
        pytest.skip(f"{openblas_wheel.WHEEL} is not installed")
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for _ in range(2):  # compiled, then reused
        subprocess.run([sys.executable, "-c", PRODUCT], check=True, env=home, timeout=120)
    built = list((tmp_path / ".config/dflash-mlx/blas").iterdir())
    assert [file.suffix for file in built] == [".so"]


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate")
def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    """MLX would fail later with a message about g++ that names no package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(DFlashError, match=r"install g\+\+"):
        openblas_wheel.load(Path("/nowhere/libscipy_openblas.so"))


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate")
def test_a_library_that_cannot_be_linked_leaves_nothing(monkeypatch, tmp_path):
    """A half-written library would be loaded by the next start."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(DFlashError, match="cannot link"):
        openblas_wheel.load(tmp_path / "missing.so")
    assert list((tmp_path / "dflash-mlx/blas").iterdir()) == []
