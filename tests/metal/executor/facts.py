"""Results of a run in addition to its outputs: reports of errors, and counts of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

# In the order of `Kind` in runtime/launch.h.
KINDS = (
    "device out of bounds",
    "threadgroup out of bounds",
    "local array out of bounds",
    "unknown memory",
    "fault",
    "guard overwritten",
    "input written",
    "threadgroup race",
    "device race",
    "same value written by several threads",
    "uninitialised threadgroup read",
    "uninitialised device read",
    "output not written",
    "divergent barrier",
    "partial simdgroup",
    "threadgroup memory over 32 KB",
    "shift too far",
    "integer overflow",
    "no end",
    "misaligned access",
)


@dataclass(frozen=True)
class Report:
    """One kind of error at one place.

    `line` is the line of the generated Metal source (0 when unknown); `times` counts occurrences.
    """

    kind: str
    buffer: str
    line: int
    detail: str
    times: int = 1

    def __str__(self) -> str:
        where = f" at line {self.line}" if self.line else ""
        return f"{self.kind}: {self.buffer}{where} ({self.detail}; {self.times}x)"


@dataclass(frozen=True)
class BufferCounts:
    """Traffic of one buffer, in bytes, except lines of 64 bytes.

    `*_issued`: every load or store. `unique_*`: bytes touched at least once.
    `group_lines_*`: 64-byte lines, each counted once per threadgroup.
    """

    size: int
    output: bool
    read_issued: int = 0
    written_issued: int = 0
    unique_read: int = 0
    unique_written: int = 0
    group_lines_read: int = 0
    group_lines_written: int = 0
    unwritten: int = 0


@dataclass(frozen=True)
class Counts:
    """Work of one launch. `buffers` is filled by traced runs only."""

    threadgroups: int
    threads: int
    barriers: int
    simd_barriers: int
    simd_ops: int
    multiplies: int
    matrix_loads: int
    matrix_stores: int
    atomics: int
    partial_simd_ops: int
    threadgroup_bytes: int
    buffers: Mapping[str, BufferCounts] = field(default_factory=dict)

    @property
    def unwritten_output_bytes(self) -> int:
        """The bytes of outputs that no thread wrote."""
        return sum(b.unwritten for b in self.buffers.values())

    @property
    def unique_bytes(self) -> int:
        """The bytes of device memory read or written at least once: the minimum traffic."""
        return sum(b.unique_read + b.unique_written for b in self.buffers.values())

    @property
    def threadgroup_traffic_bytes(self) -> int:
        """The traffic if caches serve one threadgroup only: 64 bytes per line and threadgroup."""
        lines = sum(b.group_lines_read + b.group_lines_written for b in self.buffers.values())
        return 64 * lines


SCALARS = tuple(f.name for f in fields(Counts) if f.name != "buffers")
