"""Ctrl-C while a model works: a call instead of an exception, or the end of the process.

Work on the engine's thread cannot be interrupted, and Python waits for threads when it ends; so
where nothing can be saved, the process leaves at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from dflash_mlx.commands.terminal import Terminal

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended, as shells report it."""


def leave(terminal: Terminal) -> NoReturn:
    """End the process now, with what was written flushed and the cursor on a new line."""
    for stream in (sys.stdout, sys.stderr):
        # a handler may have cut into this very flush, which Python then refuses to repeat
        with suppress(OSError, RuntimeError):
            stream.flush()
    terminal.whisper("\n")
    os._exit(INTERRUPTED)


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` at Ctrl-C in this block; it runs between two steps of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
