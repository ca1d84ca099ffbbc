"""Which commands there are, and from arguments to one of them.

Only the module of the command that was asked for is imported, and no module imports a model's
machinery before its command runs: help must answer at once.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from dflash_mlx import __version__
from dflash_mlx.commands.options import spread
from dflash_mlx.commands.refused import remedy
from dflash_mlx.errors import BadRequest

_COMMANDS = {
    "chat": "Talk with a model.",
    "generate": "Answer one prompt: text, or one JSON object.",
    "models": "List pairs, and what is on this machine.",
    "doctor": "Check this machine, and whether a pair fits.",
    "convert": "Convert a target or a draft into an MLX folder.",
    "train": "Train a draft for a target.",
    "bench": "Is DFlash worth it on this machine, and with which setting?",
    "simulate": "Try the width controller on recorded costs and invented texts.",
}
"""Command and its line in the list; each is the function of its name in the module of its name."""

_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""Click's error. Some versions of typer bring a click of their own, so it is found by descent."""


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    Raises:
        BadRequest: the arguments name no command, or not as it wants them.
    """
    try:
        program, name, rest = _program(arguments or ["--help"])
        with program.make_context(name, rest) as context:
            program.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        return 1
    except _UsageError as error:
        raise BadRequest(_explained(error)) from error
    return 0


def _program(arguments: list[str]) -> tuple[Any, str, list[str]]:
    """Return a click command, what to call it, and its own arguments."""
    name, *rest = arguments
    if name in _COMMANDS:
        app = _app([name])
        return get_command(app), f"dflash-mlx {name}", rest
    app = _app(_COMMANDS)
    app.callback(help="Language models through DFlash speculative decoding.")(_about)
    return get_command(app), "dflash-mlx", arguments


def _app(names: Iterable[str]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        app.command(name, short_help=_COMMANDS[name])(spread(_command(name)))
    return app


def _command(name: str) -> Callable[..., None]:
    command: Callable[..., None] = getattr(import_module(f"dflash_mlx.commands.{name}"), name)
    return command


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dflash-mlx {__version__}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def _explained(error: Exception) -> str:
    """Return what click found wrong, with what to do."""
    option = getattr(error, "option_name", None)
    if known := option and remedy(option):
        return f"{option} is not supported: {known}"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "dflash-mlx"
    return f"{message.rstrip('.')}; see {command} --help"
