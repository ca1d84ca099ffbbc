"""Memory on this machine: what models may take of it, and keeping it wired while they work."""

import threading
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


class _Wiring:
    """Metal's wired limit while any engine works: the first to begin sets it, the last restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_working = 0
        self._before = 0

    def begin(self, limit: int) -> None:
        with self._lock:
            if self._n_working == 0:
                self._before = mx.set_wired_limit(limit)
            self._n_working += 1

    def end(self) -> None:
        with self._lock:
            self._n_working -= 1
            if self._n_working == 0:
                mx.set_wired_limit(self._before)


_WIRING = _Wiring()
"""One for the process, as the limit itself is."""


@contextmanager
def wired() -> Iterator[None]:
    """Let Metal keep the working set wired, as mlx-lm does, and restore the limit afterwards."""
    limit = device_bytes()
    if limit is None:
        yield
        return
    _WIRING.begin(limit)
    try:
        yield
    finally:
        mx.synchronize()
        _WIRING.end()
