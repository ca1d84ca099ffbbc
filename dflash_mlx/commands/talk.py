"""A conversation with a pair: what each line that is typed does to it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dflash_mlx.commands.answering import show_answer
from dflash_mlx.commands.opening import describe, open_pair
from dflash_mlx.commands.options import RequestOptions, kernel_policy
from dflash_mlx.commands.stats_view import stats_line, stats_lines
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.commands.transcript import save_transcript
from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.system.paths import typed_path

if TYPE_CHECKING:
    from dflash_mlx import Engine, GenerationConfig, Result, Session

COMMANDS = {
    "/help": ("", "what can be typed"),
    "/reset": ("", "forget the conversation"),
    "/system": (" [TEXT]", 'show, or set and start anew ("" for none)'),
    "/stats": ("", "speed and acceptance, by position"),
    "/save": (" FILE", "write the conversation to a new file, .json or Markdown"),
    "/model": (" NAME [DRAFT]", "free this pair and load another"),
    "/quit": ("", "leave; Ctrl-D does too"),
}
"""What each is followed by, and what it does."""

_HINTS = (
    "Ctrl-C stops an answer. A line that ends in \\ goes on in the next. To send text that",
    "begins with /, begin the line with a space.",
)


@dataclass
class _Pair:
    """A loaded pair, the conversation with it, and what it answered."""

    engine: "Engine"
    session: "Session"
    config: "GenerationConfig"
    results: "list[Result]" = field(default_factory=list)


class Talk:
    """The conversation: what was loaded, and what each line does to it."""

    def __init__(self, options: RequestOptions, terminal: Terminal) -> None:
        self._options = options
        self._terminal = terminal
        self._system = options.system
        self._names = (options.model, options.draft)
        self._pair: _Pair | None = self._open(*self._names)

    def close(self) -> None:
        """Free the pair."""
        if self._pair is not None:
            self._pair.engine.close()
            self._pair = None

    def take(self, line: str) -> None:
        """Answer a line, or do what it says.

        Raises:
            DFlashError: it asks for something that cannot be had.
        """
        if line.startswith("/"):
            self._command(*line.split(maxsplit=1))
        elif line.strip():
            self._answer(line)

    @property
    def _current(self) -> _Pair:
        if self._pair is None:
            raise BadRequest("no model is loaded; load one with /model NAME")
        return self._pair

    def _answer(self, line: str) -> None:
        pair = self._current
        result = show_answer(pair.session.stream(line, pair.config), self._terminal, stays=True)
        self._terminal.end_line(exact=False)
        pair.results.append(result)
        self._terminal.say(stats_line(result), dim=True)

    def _command(self, name: str, rest: str = "") -> None:
        words = rest.split()
        if name == "/help":
            self._help()
        elif name == "/reset":
            self._current.session.reset()
            self._terminal.say("the conversation is forgotten")
        elif name == "/system":
            self._set_system(rest.strip())
        elif name == "/stats":
            for line in stats_lines(self._current.results, self._terminal):
                self._terminal.say(line)
        elif name == "/save" and words:
            path = typed_path(rest.strip())
            pair = self._current
            save_transcript(path, pair.session.messages, pair.engine.loaded.model_name)
            self._terminal.say(f"saved to {path}")
        elif name == "/model" and words and len(words) <= 2:
            self._change(words[0], words[1] if len(words) == 2 else "auto")
        else:
            raise BadRequest(f"{name} {rest}".strip() + " is no command here; /help lists them")

    def _help(self) -> None:
        for name, (rest, does) in COMMANDS.items():
            self._terminal.say(f"  {name + rest:20} {does}")
        for line in _HINTS:
            self._terminal.say(f"  {line}")

    def _set_system(self, text: str) -> None:
        if not text:
            self._terminal.say(f"system: {self._system or 'none'}")
            return
        self._system = None if text in ('""', "''") else text
        session = self._current.session
        session.reset()
        session.system = self._system
        self._terminal.say("the conversation begins anew")

    def _change(self, model: str, draft: str) -> None:
        """Put another pair in place of this one; the old one again where that fails.

        Raises:
            UnknownModel: there cannot be such a pair; this one stays.
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
            failed = str(error)  # the error itself would keep what was loaded in memory
        else:
            self._names = (model, draft)
            return
        self._terminal.say(
            f"{failed}. Loading {self._names[0]} again; the conversation begins anew"
        )
        self._pair = self._open(*self._names)

    def _open(self, model: str, draft: str) -> _Pair:
        policy = kernel_policy(self._options.kernels)
        engine = open_pair(model, draft, self._terminal, policy)
        try:
            config = self._options.generation(engine.loaded.sampling)
            engine.resolve(config)
            for line in describe(engine, config, self._options):
                self._terminal.say(line, dim=True)
            return _Pair(engine, engine.session(self._system), config)
        except DFlashError:
            engine.close()
            raise
