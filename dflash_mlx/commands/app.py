"""The table of commands, and the parser that runs one of them.

Only the module of the requested command is imported, so that `--help` does not wait for MLX.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer.main import get_command

from dflash_mlx import __version__
from dflash_mlx.commands.foreign_options import remedy
from dflash_mlx.errors import BadRequest

COMMANDS = {
    "chat": "Chat with a model.",
    "generate": "Answer one prompt; print the text or one JSON object.",
    "models": "List known pairs and the models on this machine.",
    "doctor": "Check this machine, the installation and one pair.",
    "convert": "Convert a target or a draft to a quantized MLX folder.",
    "train": "Train a draft for a target.",
    "bench": "Measure the speedup of DFlash over plain decoding.",
    "simulate": "Run the block-size controller on synthetic traces.",
}
"""Command name to its line in `--help`. Function and module have the command's name."""

_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""Click's usage error. Some versions of typer bundle their own click, so the class is looked up
from typer's subclass."""


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    Raises:
        BadRequest: unknown command, unknown option, or a value of the wrong type.
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
        raise BadRequest(_usage_message(error)) from error
    return 0


def _program(arguments: list[str]) -> tuple[Any, str, list[str]]:
    """Return a click command, its display name, and its own arguments."""
    name, *rest = arguments
    if name in COMMANDS:
        app = _app([name])
        return get_command(app), f"dflash-mlx {name}", rest
    app = _app(COMMANDS)
    app.callback(help="Speculative decoding with block-diffusion drafts (DFlash) for MLX.")(_root)
    return get_command(app), "dflash-mlx", arguments


def _app(names: Iterable[str]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        app.command(name, short_help=COMMANDS[name])(as_flags(_command(name)))
    return app


def _command(name: str) -> Callable[..., None]:
    command: Callable[..., None] = getattr(import_module(f"dflash_mlx.commands.{name}"), name)
    return command


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"dflash-mlx {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error (before COMMAND).")
    ] = False,
) -> None:
    """Accept the options that come before a command."""


def _usage_message(error: Exception) -> str:
    """Return click's message with the option's replacement or the command's `--help`."""
    option = getattr(error, "option_name", None)
    if replacement := option and remedy(option):
        return f"{option} is not supported: {replacement}"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "dflash-mlx"
    return f"{message.rstrip('.')}; see {command} --help"


def as_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command(options)` as a function with one parameter per field of its dataclass."""
    hints = get_type_hints(command, include_extras=True)
    kind = hints["options"]
    assert is_dataclass(kind), command
    types = get_type_hints(kind, include_extras=True)

    def with_flags(**values: Any) -> None:
        command(cast(Callable[..., Any], kind)(**values))

    parameters = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default if item.default is not MISSING else inspect.Parameter.empty,
            annotation=types[item.name],
        )
        for item in fields(kind)
    ]
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {item.name: item.annotation for item in parameters}
    return with_flags
