"""The one place where the host waits for the device on the decode path."""

import mlx.core as mx


def read_back(verdict: mx.array) -> tuple[int, bool, list[int]]:
    """Wait for a verdict [2 + B]; return accepted count, draft health and the B tokens."""
    n_accepted, healthy, *tokens = verdict.tolist()
    return n_accepted, bool(healthy), tokens


def settle(*arrays: mx.array) -> None:
    """Wait until `arrays` are computed, reading nothing."""
    mx.eval(*arrays)


def launch(*arrays: mx.array) -> None:
    """Start computing `arrays` without waiting."""
    mx.async_eval(*arrays)
