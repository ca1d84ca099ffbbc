"""Memory on this machine: what a pair will take, and keeping it wired while it works."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

WORKING_SHARE = 0.15
"""Most that work may need beside weights and caches, as a share of them."""


def device_bytes() -> int | None:
    """Return the bytes that models should stay within here, None where MLX does not know."""
    if not mx.metal.is_available():
        return None
    info: dict[str, Any] = mx.device_info()
    return int(info["max_recommended_working_set_size"])


@contextmanager
def wired() -> Iterator[None]:
    """Let Metal keep the working set wired, as mlx-lm does, and restore the limit afterwards."""
    limit = device_bytes()
    if limit is None:
        yield
        return
    before = mx.set_wired_limit(limit)
    try:
        yield
    finally:
        mx.synchronize()
        mx.set_wired_limit(before)
