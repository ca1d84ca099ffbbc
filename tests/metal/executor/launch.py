"""Runs a compiled kernel: fills the C structures of the runtime and reads the results."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.metal.executor.facts import KINDS, SCALARS, BufferCounts, Counts, Report
from tests.metal.executor.objects import Objects

Bytes = npt.NDArray[np.uint8]
ORDERS = ("ascending", "descending", "random")
MAX_REPORTS = 256


@dataclass
class Buffer:
    """Device memory of one argument. `initial` None: NaN for outputs, zeros for inputs."""

    name: str
    size: int
    initial: Bytes | None
    result: Bytes | None = None  # an output's bytes after the launch


@dataclass(frozen=True)
class Geometry:
    """Threads of the grid and of a threadgroup, and which threadgroups run (all when empty)."""

    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    chosen: tuple[tuple[int, int, int], ...] = ()


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("bytes", ctypes.c_uint64),
        ("initial", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("output", ctypes.c_int32),
        ("base", ctypes.c_void_p),
    )


_TRAFFIC = (
    "read_issued",
    "written_issued",
    "unique_read",
    "unique_written",
    "group_lines_read",
    "group_lines_written",
    "unwritten",
)


class _BufferCounts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in _TRAFFIC)


class _Counters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in SCALARS)


class _Report(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("what", ctypes.c_char_p),
        ("pc", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("thread", ctypes.c_uint32),
        ("other", ctypes.c_uint32),
        ("position", ctypes.c_uint32 * 3),
        ("times", ctypes.c_uint32),
    )


def launch(
    objects: Objects,
    path: Path,
    buffers: Sequence[Buffer],
    geometry: Geometry,
    *,
    order: str,
    seed: int,
    traced: bool,
    limit_s: int,
) -> tuple[Counts, list[Report]]:
    """Run the kernel in `path` on `buffers`; fills `result` of the outputs."""
    library, runtime = objects.load(path), objects.load(objects.runtime)
    given = (_Buffer * len(buffers))(*(_c_buffer(b) for b in buffers))
    counters, traffic = _Counters(), (_BufferCounts * len(buffers))()
    reports = (_Report * MAX_REPORTS)()
    chosen = [n for position in geometry.chosen for n in position]
    status = runtime.rt_launch(
        library.rt_entry,
        given,
        len(buffers),
        (ctypes.c_uint32 * 3)(*geometry.grid),
        (ctypes.c_uint32 * 3)(*geometry.threadgroup),
        (ctypes.c_uint32 * len(chosen))(*chosen),
        len(geometry.chosen),
        ORDERS.index(order),
        ctypes.c_uint64(seed),
        int(traced),
        limit_s,
        ctypes.byref(counters),
        traffic,
        reports,
        MAX_REPORTS,
    )
    n_reports = status if status >= 0 else -1 - status
    lines = _lines(path, [reports[i].pc for i in range(n_reports) if reports[i].pc])
    found = [_report(reports[i], lines) for i in range(n_reports)]
    counts = _counts(counters, traffic, buffers, traced)
    if traced and status >= 0 and not geometry.chosen:
        found += _unwritten(counts)
    return counts, found


def _c_buffer(b: Buffer) -> _Buffer:
    return _Buffer(
        b.name.encode(),
        b.size,
        b.initial.ctypes.data if b.initial is not None else None,
        b.result.ctypes.data if b.result is not None else None,
        int(b.result is not None),
        None,
    )


def _counts(
    counters: _Counters,
    traffic: ctypes.Array[_BufferCounts],
    buffers: Sequence[Buffer],
    traced: bool,
) -> Counts:
    per_buffer = {}
    if traced:
        for b, c in zip(buffers, traffic, strict=True):
            values = {name: int(getattr(c, name)) for name in _TRAFFIC}
            per_buffer[b.name] = BufferCounts(b.size, b.result is not None, **values)
    return Counts(**{name: int(getattr(counters, name)) for name in SCALARS}, buffers=per_buffer)


def _unwritten(counts: Counts) -> list[Report]:
    return [
        Report("output not written", name, 0, f"{b.unwritten} of {b.size} bytes", 1)
        for name, b in counts.buffers.items()
        if b.output and b.unwritten
    ]


def _report(r: _Report, lines: dict[int, int]) -> Report:
    position = tuple(r.position)
    detail = f"threadgroup {position}, thread {r.thread}"
    kind = KINDS[r.kind]
    if "race" in kind or "several" in kind:
        detail += f" against thread {r.other}"
    detail += f", offset {r.offset}" if r.pc else f", {r.offset}" if r.offset else ""
    return Report(kind, r.what.decode(), r.line or lines.get(r.pc, 0), detail, r.times)


def _lines(path: Path, counters: Sequence[int]) -> dict[int, int]:
    """Return the source lines of return addresses inside the shared object."""
    if not counters:
        return {}
    tool, base = shutil.which("addr2line"), _load_address(path)
    if tool is None or base is None:
        return {}
    addresses = [hex(pc - 1 - base) for pc in counters]
    command = [tool, "-a", "-i", "-e", str(path), *addresses]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = {}
    frames = re.split(r"^0x[0-9a-f]+\n", text, flags=re.M)[1:]
    for pc, frame in zip(counters, frames, strict=True):
        match = re.search(r"\.metal:(\d+)", frame)
        lines[pc] = int(match.group(1)) if match else 0
    return lines


def _load_address(path: Path) -> int | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            return int(line.split("-")[0], 16)
    return None
