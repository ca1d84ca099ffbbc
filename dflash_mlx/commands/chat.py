"""`dflash-mlx chat`: reads lines and prints answers until the input ends.

Answers go to stdout; the prompt sign, statistics and messages go to stderr.
"""

from dflash_mlx.commands.conversation import CHAT_COMMANDS, Conversation
from dflash_mlx.commands.line_input import LineInput, history_file
from dflash_mlx.commands.options import RequestOptions, prepare
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.errors import DFlashError


def chat(options: RequestOptions) -> None:
    """Chat with a model; Ctrl-C stops an answer, /help lists the commands.

    Each token is the argmax, or a sample, of the target's own forward pass.
    """
    options.check()
    prepare(options.blas)
    terminal = Terminal()
    conversation = Conversation(options, terminal)
    words = [name + " " * bool(arguments) for name, (arguments, _) in CHAT_COMMANDS.items()]
    lines = LineInput(words, history_file())
    try:
        if lines.interactive:
            terminal.log("/help lists the commands", dim=True)
        _loop(conversation, lines, terminal)
    finally:
        conversation.close()


def _loop(conversation: Conversation, lines: LineInput, terminal: Terminal) -> None:
    """Process lines until the input ends or Ctrl-C is pressed twice in a row."""
    interrupted = False
    while True:
        try:
            line = lines.read()
        except KeyboardInterrupt:
            if interrupted or not lines.interactive:
                raise
            interrupted = True
            terminal.log("\npress Ctrl-C again, or Ctrl-D, to exit")
            continue
        interrupted = False
        if line is None:
            if lines.interactive:
                terminal.log()
            return
        if line.split() == ["/quit"]:
            return
        try:
            conversation.take(line)
        except DFlashError as error:
            if not lines.interactive:
                raise
            terminal.log(str(error))
