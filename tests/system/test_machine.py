"""Facts about a machine, parsed from the output of operating systems."""

import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.system import machine
from dflash_mlx.system.machine import (
    check_python,
    compiler_fault,
    memory_here,
    read_meminfo,
    read_vm_stat,
    this_machine,
)

MEMINFO = """MemTotal:       24673996 kB
MemFree:         1081368 kB
MemAvailable:   23128344 kB
SwapTotal:             0 kB
"""
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               28406.
Pages active:                            405437.
Pages inactive:                          398712.
Pages speculative:                         6301.
Pages throttled:                              0.
Pages wired down:                        163402.
Pages purgeable:                          10000.
"Translation faults":                1234567890.
"""


def test_linux_memory():
    """MemFree excludes the page cache, so MemAvailable is the right field."""
    assert read_meminfo(MEMINFO) == (24673996 * 1024, 23128344 * 1024)
    assert read_meminfo("") == (None, None)


def test_macos_memory():
    """Active and wired pages are in use; inactive pages are available."""
    assert read_vm_stat(VM_STAT) == 16384 * (28406 + 398712 + 6301 + 10000)
    assert read_vm_stat("") is None


@pytest.fixture
def container(tmp_path, monkeypatch):
    """Return the cgroup folder of a fake Linux container."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    return tmp_path


def test_a_containers_limit_counts(container):
    """The host's memory was reported in a container limited to 2 GB."""
    (container / "memory.max").write_text("2000000000\n")
    (container / "memory.current").write_text("500000000\n")
    assert memory_here() == (2_000_000_000, 1_500_000_000)


def test_cached_files_count_as_available_in_a_container(container):
    """The page cache of a new download made the model appear not to fit."""
    (container / "memory.max").write_text("2000000000\n")
    (container / "memory.current").write_text("1900000000\n")
    (container / "memory.stat").write_text("anon 5\ninactive_file 1500000000\nfile 7\n")
    assert memory_here() == (2_000_000_000, 1_600_000_000)


@pytest.mark.parametrize("limit", ["max", "999999999999999"])
def test_a_container_without_limit_has_the_hosts_memory(container, limit):
    """The value "max" means no limit."""
    (container / "memory.max").write_text(f"{limit}\n")
    assert memory_here() == (24673996 * 1024, 23128344 * 1024)


def test_memory_of_an_unknown_system_is_none(tmp_path, monkeypatch):
    """A guessed number would decide whether a model is loaded."""
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr("sys.platform", "other")
    assert memory_here() == (None, None)


def test_this_machine_has_a_device_and_memory():
    """The functions work together on the machine of the tests."""
    here = this_machine()
    assert here.device in ("cpu", "metal")
    assert here.n_cores > 0
    assert here.usable_bytes is None or 0 < here.usable_bytes <= here.memory_bytes


def test_the_compiler_is_tried(monkeypatch):
    """An installed g++ can fail; only compiling shows it."""
    assert compiler_fault() is None

    def broken(function):
        raise RuntimeError("[Compile] g++ says no\nat length")

    monkeypatch.setattr("mlx.core.compile", broken)
    assert compiler_fault() == "[Compile] g++ says no"


def test_an_x86_python_on_a_mac_is_refused(monkeypatch):
    """Under Rosetta MLX finds no Metal device and gives an unrelated error."""
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(DFlashError, match="arm64"):
        check_python()
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    check_python()
