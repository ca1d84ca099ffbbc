"""Facts about this machine: chip, cores, memory and the share that models may use.

Values come from the operating system and MLX; a value that neither provides is None.
"""

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import DFlashError

WORKING_SHARE = 0.15
"""Working memory during inference, as a share of weights and caches: an upper bound of the peak
that `benchmarks/embedded_memory.py` measures (activations, logits and allocator slack)."""

_MEMINFO = Path("/proc/meminfo")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")
_PAGE = re.compile(r"page size of (\d+) bytes")
_REUSABLE = re.compile(r"Pages (?:free|inactive|speculative|purgeable):\s+(\d+)")


@dataclass(frozen=True)
class Machine:
    """The chip and memory of a machine, in bytes.

    `memory_bytes` is the installed memory or the container's limit, `free_bytes` the memory that
    is available now. Models should stay within `usable_bytes`: Metal's recommended working set,
    or the free memory without Metal.
    """

    system: str
    chip: str
    n_cores: int
    device: str
    memory_bytes: int | None
    free_bytes: int | None
    usable_bytes: int | None


def this_machine() -> Machine:
    """Return the facts about the machine this process runs on."""
    import mlx.core as mx

    from dflash_mlx.system.memory import device_bytes

    total, free = memory_here()
    metal = mx.metal.is_available()
    chip = str(mx.device_info().get("device_name", "")) if metal else _cpu_name()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        chip=chip or platform.processor() or "unknown",
        n_cores=os.cpu_count() or 1,
        device="metal" if metal else "cpu",
        memory_bytes=total,
        free_bytes=free,
        usable_bytes=device_bytes() or free,
    )


def memory_here() -> tuple[int | None, int | None]:
    """Return the total and the available memory in bytes."""
    if sys.platform == "darwin":
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, read_vm_stat(_run("vm_stat"))
    if not _MEMINFO.exists():
        return None, None
    total, free = read_meminfo(_MEMINFO.read_text())
    limit, used = (_number(_CGROUP / name) for name in ("memory.max", "memory.current"))
    if total and free and limit and limit < total:
        return limit, min(free, limit - (used or 0) + _file_cache())
    return total, free


def read_meminfo(text: str) -> tuple[int | None, int | None]:
    """Return the total and available bytes from the text of Linux's `/proc/meminfo`."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", text, re.MULTILINE))
    total, free = (found.get(key) for key in ("MemTotal", "MemAvailable"))
    return (int(total) * 1024 if total else None), (int(free) * 1024 if free else None)


def read_vm_stat(text: str) -> int | None:
    """Return the bytes that macOS's `vm_stat` counts as free or reusable at once."""
    page, counts = _PAGE.search(text), _REUSABLE.findall(text)
    return int(page[1]) * sum(map(int, counts)) if page and counts else None


def compiler_fault() -> str | None:
    """Return why MLX cannot compile here, or None if it can. On Linux MLX calls g++."""
    import mlx.core as mx

    try:
        mx.eval(mx.compile(lambda x: mx.exp(x) * x + 1)(mx.ones(3)))
    except RuntimeError as error:
        return str(error).strip().split("\n")[0]
    return None


def check_python() -> None:
    """Check that Python is a native arm64 build on a Mac; MLX needs one to use the GPU.

    Raises:
        DFlashError: it is an x86 build that runs under Rosetta.
    """
    if sys.platform == "darwin" and platform.machine() != "arm64":
        raise DFlashError(
            f"{sys.executable} is an {platform.machine()} build, which MLX does not support; "
            "install an arm64 build of Python"
        )


def _file_cache() -> int:
    """Return the bytes of cached files in this container, which the kernel frees on demand."""
    try:
        found = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _cpu_name() -> str:
    if not _CPUINFO.exists():
        return ""
    named = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(), re.MULTILINE)
    return named[1].strip() if named else ""


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
