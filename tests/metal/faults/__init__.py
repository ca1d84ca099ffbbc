"""Faults to plant in our kernels, to measure what the tests would catch.

One TOML file per kernel; each fault is a small change of the shipped text that a tired author
could make.
"""

from tests.metal.faults.fault import Fault, StaleFault, read_faults

__all__ = ["Fault", "StaleFault", "read_faults"]
