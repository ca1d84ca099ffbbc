"""One answer on the screen: chunks to stdout as they come, everything else to stderr."""

from typing import TYPE_CHECKING

from dflash_mlx.commands.interrupt import leave, on_interrupt
from dflash_mlx.commands.progress import show_prefill
from dflash_mlx.commands.terminal import Terminal

if TYPE_CHECKING:
    from dflash_mlx import Result, Stream


def show_answer(stream: "Stream", terminal: Terminal, text: bool = True) -> "Result":
    """Write an answer as it comes (not where `text` is False) and return it.

    Ctrl-C stops the answer at the end of its round; a second one leaves at once.
    """
    presses = 0

    def stop() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            leave(terminal)
        stream.cancel()

    with on_interrupt(stop):
        for chunk in stream:
            if presses:
                terminal.show("stopping; Ctrl-C again leaves at once")
            elif chunk.progress:
                show_prefill(terminal, *chunk.progress)
            if chunk.notice:
                terminal.say(chunk.notice, dim=True)
            if text:
                terminal.write(chunk.text, dim=chunk.thinking)
        result = stream.result()
    terminal.erase()
    return result
