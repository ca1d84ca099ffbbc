"""The memory that models may use on this machine, and keeping it wired during inference."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx


def device_bytes() -> int | None:
    """Return Metal's recommended working set in bytes, None without a Metal device."""
    if not mx.metal.is_available():
        return None
    info: dict[str, Any] = mx.device_info()
    return int(info["max_recommended_working_set_size"])


class _Wiring:
    """Reference count for Metal's wired limit: the first engine sets it, the last restores it."""

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
"""One per process, because the limit is per process."""


@contextmanager
def wired() -> Iterator[None]:
    """Raise Metal's wired limit to the recommended working set inside the block, as mlx-lm does."""
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
