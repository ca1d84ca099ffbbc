"""What is going on before the first word: steps, downloads, prompt rows. All on stderr."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dflash_mlx.commands.terminal import Terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from dflash_mlx import LoadHooks

_EVERY_S = 10.0
"""Seconds between two lines about one thing where nobody watches a bar."""


class Loading:
    """Shows how loading goes: one line that changes, and a bar, on a screen; lines elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._told_at = time.monotonic()
        self._last_step = ""
        self._over = False

    def __enter__(self) -> Self:
        """Begin to draw."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take everything away that was drawn; what comes later is not shown."""
        self.stop()
        self._over = True

    @property
    def hooks(self) -> "LoadHooks":
        """What `load` wants to be given."""
        from dflash_mlx import LoadHooks

        return LoadHooks(self._step, self._download, self._notice)

    def stop(self) -> None:
        """Take the bar and the passing line away."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = self._task = None
        self._terminal.erase()

    def _step(self, text: str) -> None:
        if self._over:  # autotuning between requests would write into a line that is being typed
            return
        self._last_step = text
        if self._bars is not None:
            self._bars.console.print(text, style="dim", highlight=False)
        elif self._terminal.told:
            self._terminal.show(text)
        else:
            self._terminal.say(text)

    def _notice(self, text: str) -> None:
        self.stop()
        self._terminal.say(text)

    def _download(self, done: int, total: int) -> None:
        if self._terminal.told:
            self._draw(done, total)
        elif done >= total or time.monotonic() - self._told_at > _EVERY_S:
            from dflash_mlx.hub.download import spelled_bytes

            self._told_at = time.monotonic()
            self._terminal.say(f"{spelled_bytes(done)} of {spelled_bytes(total)} downloaded")

    def _draw(self, done: int, total: int) -> None:
        if self._bars is None or self._task is None:
            self._terminal.say(self._last_step, dim=True)  # how much, and where to
            self._bars = byte_bars()
            self._bars.start()
            self._task = self._bars.add_task("downloading", total=total)
        self._bars.update(self._task, completed=done, total=total)
        if done >= total:
            self.stop()


class Reading:
    """Shows how much of a prompt has been read: a passing line on a screen, now and then a line."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._told_at = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """Say that `done` of `total` tokens have been read."""
        text = f"reading the prompt: {done} of {total} tokens"
        if self._terminal.told:
            self._terminal.show(text)
        elif time.monotonic() - self._told_at > _EVERY_S:
            self._told_at = time.monotonic()
            self._terminal.say(text)


def byte_bars() -> "Progress":
    """Return bars that count bytes, on stderr, gone when they are done."""
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
