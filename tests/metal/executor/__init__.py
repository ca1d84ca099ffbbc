"""Runs the Metal kernels of this project on a CPU and watches what they do."""

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
