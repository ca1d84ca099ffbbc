"""One answer on the screen: chunks to stdout as they come, everything else to stderr."""

from typing import TYPE_CHECKING

from dflash_mlx.commands.interrupt import leave, on_interrupt
from dflash_mlx.commands.progress import Reading
from dflash_mlx.commands.terminal import Terminal

if TYPE_CHECKING:
    from dflash_mlx import Result, Stream


def show_answer(
    stream: "Stream", terminal: Terminal, text: bool = True, stays: bool = False
) -> "Result":
    """Write an answer as it comes (not where `text` is False) and return it.

    Ctrl-C stops the answer at the end of its round, a second one ends the process at once; so
    does the first while the prompt is being read, unless the program `stays`.
    """
    begun = stopping = False
    reading = Reading(terminal)

    def stop() -> None:
        nonlocal stopping
        if stopping or not (begun or stays):
            leave(terminal)
        stopping = True
        stream.cancel()
        if not begun:
            terminal.whisper("\nstopping when this part is read; again leaves at once")

    with on_interrupt(stop):
        for chunk in stream:
            begun = begun or bool(chunk.tokens)
            if chunk.progress and not stopping:
                reading.show(*chunk.progress)
            if chunk.notice:
                terminal.say(chunk.notice, dim=True)
            if text:
                terminal.write(chunk.text, dim=chunk.thinking)
        result = stream.result()
    terminal.erase()
    return result
