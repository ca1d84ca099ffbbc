"""Progress of loading, downloads and prefill on stderr: bars on a screen, lines in a log.

It must not know models; it only receives counts and messages.
"""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dflash_mlx.commands.terminal import Terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from dflash_mlx import LoadHooks

LOG_INTERVAL_S = 10.0
"""Seconds between two lines about one activity in a log: a few per minute show that it runs."""


class LoadingProgress:
    """Shows loading: a status line and a download bar on a screen, lines elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._logged_at = time.monotonic()
        self._last_step = ""
        self._finished = False

    def __enter__(self) -> Self:
        """Return self; drawing starts with the first report."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove everything that was drawn and ignore later reports."""
        self.stop()
        self._finished = True

    @property
    def hooks(self) -> "LoadHooks":
        """Return the callbacks to pass to `load`."""
        from dflash_mlx import LoadHooks

        return LoadHooks(self._step, self._download, self._notice)

    def stop(self) -> None:
        """Remove the bar and the status line."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = self._task = None
        self._terminal.clear_status()

    def _step(self, text: str) -> None:
        if self._finished:  # autotuning between requests would write into a line being typed
            return
        self._last_step = text
        if self._bars is not None:
            self._bars.console.print(text, style="dim", highlight=False)
        elif self._terminal.stderr_is_tty:
            self._terminal.show_status(text)
        else:
            self._terminal.log(text)

    def _notice(self, text: str) -> None:
        self.stop()
        self._terminal.log(text)

    def _download(self, done: int, total: int) -> None:
        if self._terminal.stderr_is_tty:
            self._draw(done, total)
        elif done >= total or time.monotonic() - self._logged_at > LOG_INTERVAL_S:
            from dflash_mlx.hub.download import spelled_bytes

            self._logged_at = time.monotonic()
            self._terminal.log(f"{spelled_bytes(done)} of {spelled_bytes(total)} downloaded")

    def _draw(self, done: int, total: int) -> None:
        if self._bars is None or self._task is None:
            self._terminal.log(self._last_step, dim=True)  # keeps size and destination readable
            self._bars = byte_bars()
            self._bars.start()
            self._task = self._bars.add_task("downloading", total=total)
        self._bars.update(self._task, completed=done, total=total)
        if done >= total:
            self.stop()


class PrefillProgress:
    """Shows prefill: a status line on a screen, a line per `LOG_INTERVAL_S` in a log."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._logged_at = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """Report that `done` of `total` prompt tokens have been processed."""
        text = f"reading the prompt: {done} of {total} tokens"
        if self._terminal.stderr_is_tty:
            self._terminal.show_status(text)
        elif time.monotonic() - self._logged_at > LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            self._terminal.log(text)


def byte_bars() -> "Progress":
    """Return transient progress bars on stderr that count bytes."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
