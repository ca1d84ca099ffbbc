"""The only module of the decode path in which the host waits for the device."""

from typing import Any, NamedTuple

import mlx.core as mx


class RoundVerdict(NamedTuple):
    """The verdict of an accept rule on the host."""

    n_accepted: int
    draft_is_finite: bool
    tokens: list[int]
    """One token per row; the first n_accepted + 1 are final."""
    confidence: list[float]
    """One probability per row; see `Round.confidence`."""


def read_back(verdict: mx.array) -> RoundVerdict:
    """Wait for a verdict [2 + 2B] and return its values."""
    numbers: Any = verdict.tolist()
    n_accepted, draft_is_finite, *rest = numbers
    block_size = len(rest) // 2
    confidence = [millionths / 1e6 for millionths in rest[block_size:]]
    return RoundVerdict(n_accepted, bool(draft_is_finite), rest[:block_size], confidence)


def settle(*arrays: mx.array) -> None:
    """Wait until `arrays` are computed."""
    mx.eval(*arrays)


def launch(*arrays: mx.array) -> None:
    """Start computing `arrays` without waiting for them."""
    mx.async_eval(*arrays)
