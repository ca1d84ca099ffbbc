"""Runs Metal kernels on a CPU and checks their memory accesses and synchronization."""

from tests.metal.executor.executor import Executor, Run
from tests.metal.executor.facts import BufferCounts, Counts, Report
from tests.metal.executor.objects import CompileError, Objects, missing
from tests.metal.executor.source import Source

__all__ = [
    "BufferCounts",
    "CompileError",
    "Counts",
    "Executor",
    "Objects",
    "Report",
    "Run",
    "Source",
    "missing",
]
