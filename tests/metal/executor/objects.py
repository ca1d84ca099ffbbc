"""Compiles translation units with g++ and caches the shared objects by a hash of their input.

The cache folder is shared by all processes; files are renamed into place. It can be deleted.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "runtime"
KEEP_S = 14 * 24 * 3600.0  # objects unused for two weeks are deleted

_COMMON = ("-std=c++17", "-g1", "-fPIC", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
_KERNEL = (
    "-O1",
    "-fsingle-precision-constant",  # Metal has no double: 0.5 is a float
    # Uninitialised locals hold a fixed bit pattern; lower.py fills those of kernels with NaN.
    "-ftrivial-auto-var-init=pattern",
    "-ffp-contract=off",
)
_TRACED = (
    "-fsanitize=thread",
    "-fsanitize=bounds,shift-exponent,signed-integer-overflow,integer-divide-by-zero,alignment",
    "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize",
    "--param=tsan-instrument-func-entry-exit=0",
)
# Without the default libraries: the runtime replaces the runtimes of the sanitizers.
_LINK = ("-nodefaultlibs", "-lm", "-lc", "-lgcc")
_WRAP = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")


class CompileError(Exception):
    """The C++ compiler rejected a kernel; the message contains its first errors."""


def compiler() -> str | None:
    """Return the path of g++, or None."""
    return shutil.which("g++")


def missing() -> str | None:
    """Return why kernels cannot run on this machine, or None."""
    if platform.system() != "Linux":
        return (
            f"this is {platform.system()} and the executor needs Linux; use --device metal on a Mac"
        )
    if compiler() is None:
        return "no g++ is on PATH and the executor needs it; install g++"
    return None


class Objects:
    """The cache of compiled kernels.

    portable: switch fibers with ucontext, as on processors without an own context switch.
    """

    def __init__(self, folder: Path | None = None, *, portable: bool = False) -> None:
        self.folder = folder or _default_folder()
        self.portable = portable
        self.folder.mkdir(parents=True, exist_ok=True)
        self._loaded: dict[Path, ctypes.CDLL] = {}
        _prune(self.folder)

    def kernel(self, name: str, text: str, *, traced: bool) -> Path:
        """Return the path of the shared object of this translation unit; compiles it if needed."""
        flags = [*_COMMON, *_machine_flags(), *_KERNEL, *(_TRACED if traced else ())]
        runtime = self.runtime
        link = [*(_WRAP if traced else ()), str(runtime), *_LINK]
        target = self._target(name.removeprefix("custom_kernel_")[:60], text, *flags, *link)
        if not target.exists():
            prelude = self._prelude(flags)
            self._compile(target, text, [*flags, f"-I{prelude}", f"-I{INCLUDE}"], link)
        return target

    def _prelude(self, flags: list[str]) -> Path:
        """Return the folder of the shim precompiled for these flags, which halves compile time."""
        folder = self._target("prelude", *flags).with_suffix("")
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=self.folder, prefix="build_") as build:
                made = Path(build) / "metal_stdlib.gch"
                header = ["-x", "c++-header", str(INCLUDE / "metal_stdlib"), "-o", str(made)]
                _run([*flags, f"-I{INCLUDE}", *header], "the shim")
                staged = Path(build) / folder.name
                staged.mkdir()
                os.replace(made, staged / made.name)
                with contextlib.suppress(OSError):  # another process did it first
                    os.rename(staged, folder)
        return folder

    @functools.cached_property
    def runtime(self) -> Path:
        """The path of the shared object of the runtime."""
        parts = sorted(RUNTIME.glob("*.cpp"))
        text = "".join(f'#include "{part}"\n' for part in parts)
        flags = [*_COMMON, *_machine_flags(), "-O3", *(["-DRT_PORTABLE"] if self.portable else [])]
        target = self._target("runtime", _sources_hash(), text, *flags)
        if not target.exists():
            self._compile(target, text, flags, [])
        return target

    def load(self, path: Path) -> ctypes.CDLL:
        """Return the loaded shared object and mark it as used."""
        if path not in self._loaded:
            os.utime(path)
            self._loaded[path] = ctypes.CDLL(str(path))
        return self._loaded[path]

    def _target(self, name: str, *parts: str) -> Path:
        key = hashlib.sha256("\0".join([*parts, _compiler_version(), _sources_hash()]).encode())
        return self.folder / f"{name}_{key.hexdigest()[:20]}.so"

    def _compile(self, target: Path, text: str, flags: list[str], link: list[str]) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="build_") as build:
            unit = Path(build) / "unit.cpp"
            unit.write_text(text)
            made = Path(build) / "unit.so"
            _run([*flags, "-shared", "-o", str(made), str(unit), *link], target.stem)
            os.replace(made, target)


def _run(arguments: list[str], what: str) -> None:
    command = [compiler() or "g++", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"g++ rejected {what}:\n{_first_errors(done.stderr)}")


def _first_errors(stderr: str, limit: int = 12) -> str:
    """Return the distinct errors: templates repeat them per instantiation."""
    lines = [line for line in stderr.splitlines() if "error:" in line] or stderr.splitlines()
    short = (re.sub(r"^.*?\.metal:", "line ", line) for line in lines)
    return "\n".join(list(dict.fromkeys(short))[:limit])


@functools.cache
def _sources_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted([*INCLUDE.rglob("*"), *RUNTIME.rglob("*")]):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _compiler_version() -> str:
    command = [compiler() or "g++", "-dumpfullversion", "-dumpmachine"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    """Return flags for the instruction sets of this processor; they are part of the hash."""
    if platform.machine() != "x86_64":
        return ()
    has = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split())
    wanted = {"avx2": "-mavx2", "fma": "-mfma", "f16c": "-mf16c"}
    return tuple(flag for name, flag in wanted.items() if name in has)


def _default_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "dflash-mlx" / "metal-executor"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"dflash-mlx-metal-executor-{os.getuid()}"
    return folder


def _prune(folder: Path) -> None:
    oldest = time.time() - KEEP_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process did it first
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
