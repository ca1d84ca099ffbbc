"""Faults for the mutation test: small changes of kernel sources, one TOML file per kernel."""

from tests.metal.faults.fault import Fault, StaleFault, read_faults

__all__ = ["Fault", "StaleFault", "read_faults"]
