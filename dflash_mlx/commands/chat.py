"""`dflash-mlx chat`: lines in, answers out, until there are no more lines.

Answers go to stdout; the prompt, statistics and everything about the conversation do not.
"""

from dflash_mlx.commands.lines import Lines, history_file
from dflash_mlx.commands.options import RequestOptions, blas_choice
from dflash_mlx.commands.talk import COMMANDS, Talk
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.errors import DFlashError
from dflash_mlx.system.blas import choose_blas


def chat(options: RequestOptions) -> None:
    """Chat with a model; Ctrl-C stops an answer, /help lists what can be typed.

    Each token is the argmax, or a sample, of the target's own forward pass that verified it.
    """
    options.check()
    choose_blas(blas_choice(options.blas))
    terminal = Terminal()
    talk = Talk(options, terminal)
    words = [name + " " * bool(rest) for name, (rest, _) in COMMANDS.items()]
    lines = Lines(words, history_file())
    try:
        if lines.typed:
            terminal.say("/help lists what can be typed", dim=True)
        _loop(talk, lines, terminal)
    finally:
        talk.close()


def _loop(talk: Talk, lines: Lines, terminal: Terminal) -> None:
    """Take lines until there are no more, or Ctrl-C comes twice in a row."""
    pressed = False
    while True:
        try:
            line = lines.read()
        except KeyboardInterrupt:
            if pressed or not lines.typed:
                raise
            pressed = True
            terminal.say("\nCtrl-C again, or Ctrl-D, leaves")
            continue
        pressed = False
        if line is None:
            if lines.typed:
                terminal.say()
            return
        if line.split() == ["/quit"]:
            return
        try:
            talk.take(line)
        except DFlashError as error:
            if not lines.typed:
                raise
            terminal.say(str(error))
