"""The one place where the host waits for the device on the decode path."""

from typing import Any, NamedTuple

import mlx.core as mx


class Verdict(NamedTuple):
    """A verdict as numbers: accepted draft tokens, draft health, B tokens and B confidences."""

    n_accepted: int
    healthy: bool
    tokens: list[int]
    confidence: list[float]


def read_back(verdict: mx.array) -> Verdict:
    """Wait for a verdict [2 + 2B] and return what it says."""
    numbers: Any = verdict.tolist()
    n_accepted, healthy, *rest = numbers
    n_rows = len(rest) // 2
    confidence = [millionths / 1e6 for millionths in rest[n_rows:]]
    return Verdict(n_accepted, bool(healthy), rest[:n_rows], confidence)


def settle(*arrays: mx.array) -> None:
    """Wait until `arrays` are computed, reading nothing."""
    mx.eval(*arrays)


def launch(*arrays: mx.array) -> None:
    """Start computing `arrays` without waiting."""
    mx.async_eval(*arrays)
