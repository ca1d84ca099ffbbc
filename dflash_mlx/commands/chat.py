"""`dflash-mlx chat`: reads lines, answers questions and runs commands until the input ends.

Answers go to stdout; the prompt sign, statistics and messages go to stderr.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_mlx.commands.inference import describe, open_pair, print_answer
from dflash_mlx.commands.line_input import LineInput, history_file
from dflash_mlx.commands.options import RequestOptions, compute_dtype, kernel_policy, prepare
from dflash_mlx.commands.stats_view import stats_line, stats_lines
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.system.paths import typed_path

if TYPE_CHECKING:
    from dflash_mlx import Engine, GenerationConfig, Result, Session

CHAT_COMMANDS = {
    "/help": ("", "list the commands"),
    "/reset": ("", "clear the conversation"),
    "/system": (" [TEXT]", 'show the system message, or set it ("" for none) and restart'),
    "/stats": ("", "show throughput and acceptance by position"),
    "/save": (" FILE", "write the conversation to a new file, .json or Markdown"),
    "/model": (" NAME [DRAFT]", "unload this pair and load another"),
    "/quit": ("", "exit; so does Ctrl-D"),
}
"""Command to its arguments and its effect."""

_HINTS = (
    "Ctrl-C stops an answer. A line that ends in \\ continues on the next line.",
    "Begin a line with a space to send text that starts with /.",
)


@dataclass
class _OpenPair:
    """A loaded pair with its conversation and the results so far."""

    engine: "Engine"
    session: "Session"
    config: "GenerationConfig"
    results: "list[Result]" = field(default_factory=list)


class Conversation:
    """A conversation with a loaded pair; `take` processes one typed line."""

    def __init__(self, options: RequestOptions, terminal: Terminal) -> None:
        self._options = options
        self._terminal = terminal
        self._system = options.system
        self._names = (options.model, options.draft)
        self._pair: _OpenPair | None = self._open(*self._names)

    def close(self) -> None:
        """Unload the pair."""
        if self._pair is not None:
            self._pair.engine.close()
            self._pair = None

    def take(self, line: str) -> None:
        """Answer a question, or run a command that starts with a slash.

        Raises:
            DFlashError: the command is unknown or cannot be carried out.
        """
        if line.startswith("/"):
            self._command(*line.split(maxsplit=1))
        elif line.strip():
            self._answer(line)

    @property
    def _current(self) -> _OpenPair:
        if self._pair is None:
            raise BadRequest("no model is loaded; load one with /model NAME")
        return self._pair

    def _answer(self, line: str) -> None:
        pair = self._current
        stream = pair.session.stream(line, pair.config)
        result = print_answer(stream, self._terminal, keep_running=True)
        self._terminal.end_line(exact=False)
        pair.results.append(result)
        self._terminal.log(stats_line(result), dim=True)

    def _command(self, name: str, argument: str = "") -> None:
        words = argument.split()
        if name == "/help":
            self._help()
        elif name == "/reset":
            self._current.session.reset()
            self._terminal.log("conversation cleared")
        elif name == "/system":
            self._set_system(argument.strip())
        elif name == "/stats":
            for line in stats_lines(self._current.results, self._terminal):
                self._terminal.log(line)
        elif name == "/save" and words:
            path = typed_path(argument.strip())
            pair = self._current
            save_transcript(path, pair.session.messages, pair.engine.loaded.model_name)
            self._terminal.log(f"saved to {path}")
        elif name == "/model" and words and len(words) <= 2:
            self._change_model(words[0], words[1] if len(words) == 2 else "auto")
        else:
            raise BadRequest(f"{f'{name} {argument}'.strip()} is not a command; see /help")

    def _help(self) -> None:
        for name, (arguments, effect) in CHAT_COMMANDS.items():
            self._terminal.log(f"  {name + arguments:20} {effect}")
        for line in _HINTS:
            self._terminal.log(f"  {line}")

    def _set_system(self, text: str) -> None:
        if not text:
            self._terminal.log(f"system: {self._system or 'none'}")
            return
        self._system = None if text in ('""', "''") else text
        session = self._current.session
        session.reset()
        session.system = self._system
        self._terminal.log("conversation restarted")

    def _change_model(self, model: str, draft: str) -> None:
        """Unload this pair and load another; load this one again if that fails.

        Raises:
            UnknownModel: the name cannot exist; the current pair stays loaded.
        """
        from dflash_mlx.doctor.checkup import locate
        from dflash_mlx.hub.pins import Pins
        from dflash_mlx.pairs.pairing import choose
        from dflash_mlx.system.settings import settings_folder

        locate(choose(model, draft), Pins(settings_folder()))
        self.close()
        try:
            self._pair = self._open(model, draft)
        except DFlashError as error:
            failure = str(error)  # the exception would keep the loaded arrays in memory
        else:
            self._names = (model, draft)
            return
        self._terminal.log(f"{failure}. Loading {self._names[0]} again; conversation restarted")
        self._pair = self._open(*self._names)

    def _open(self, model: str, draft: str) -> _OpenPair:
        policy = kernel_policy(self._options.kernels)
        dtype = compute_dtype(self._options.dtype)
        # --bits belongs to the model of the command line, not to one that /model names
        bits = self._options.bits if model == self._options.model else "auto"
        engine = open_pair(model, draft, self._terminal, policy, dtype, bits)
        try:
            config = self._options.generation(engine.loaded.sampling)
            engine.resolve(config)
            for line in describe(engine, config, self._options):
                self._terminal.log(line, dim=True)
            return _OpenPair(engine, engine.session(self._system), config)
        except DFlashError:
            engine.close()
            raise


def save_transcript(path: Path, messages: Sequence[Mapping[str, Any]], model: str) -> None:
    """Write `messages` to a new file: JSON if its suffix is .json, Markdown otherwise.

    Raises:
        BadRequest: there are no messages, the file exists, or it cannot be written.
    """
    if not messages:
        raise BadRequest("the conversation is empty; there is nothing to save")
    if path.suffix == ".json":
        text = json.dumps({"model": model, "messages": messages}, indent=2, ensure_ascii=False)
    else:
        parts = [f"## {message['role']}\n\n{message['content']}" for message in messages]
        text = "\n\n".join([f"# {model}", *parts])
    created = False
    try:
        with path.open("x", encoding="utf-8") as file:
            created = True
            file.write(text + "\n")
    except FileExistsError as error:
        raise BadRequest(f"{path} exists; give another name") from error
    except OSError as error:
        if created:
            path.unlink(missing_ok=True)  # an incomplete file would block the next attempt
        raise BadRequest(
            f"{path} cannot be written ({error.strerror}); give another name"
        ) from error


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
