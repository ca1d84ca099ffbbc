"""`dflash-mlx generate`: one prompt in, its answer on stdout, everything else on stderr."""

import json
import sys
from typing import Annotated

import typer

from dflash_mlx.commands.answering import show_answer
from dflash_mlx.commands.interrupt import INTERRUPTED
from dflash_mlx.commands.opening import describe, open_pair
from dflash_mlx.commands.options import RequestOptions, blas_choice, kernel_policy
from dflash_mlx.commands.stats_view import stats_line
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.blas import choose_blas


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt, or - to read it from stdin.")],
    options: RequestOptions,
    plain_text: Annotated[
        bool, typer.Option("--no-chat-template", help="Continue the prompt instead of answering.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Answer one prompt: the text on stdout and nothing else.

    Each token is the argmax, or a sample, of the target's own forward pass that verified it.
    """
    options.check()
    text = _prompt(prompt)
    if options.system and plain_text:
        raise BadRequest("--system needs the chat template; put its text into the prompt")
    if options.thinking is not None and plain_text:
        raise BadRequest("--thinking needs the chat template; leave one of them out")
    choose_blas(blas_choice(options.blas))
    terminal = Terminal()
    policy = kernel_policy(options.kernels)
    with open_pair(options.model, options.draft, terminal, policy) as engine:
        config = options.generation(engine.loaded.sampling, chat_template=not plain_text)
        stream = engine.session(options.system).stream(text, config)
        for line in describe(engine, config, options):
            terminal.say(line, dim=True)
        result = show_answer(stream, terminal, text=not as_json)
    if as_json:
        terminal.write(json.dumps(result.as_dict(), ensure_ascii=False) + "\n")
    terminal.end_line(exact=True)
    terminal.say(stats_line(result), dim=True)
    if result.finish_reason == "cancelled":
        raise typer.Exit(INTERRUPTED)


def _prompt(argument: str) -> str:
    """Return the prompt, read from stdin where the argument says so.

    Raises:
        BadRequest: it is empty, or not text.
    """
    try:
        text = sys.stdin.buffer.read().decode() if argument == "-" else argument
        text.encode()
    except UnicodeError as error:
        raise BadRequest(f"the prompt is no UTF-8 text ({error}); convert it first") from error
    if not text.strip():
        raise BadRequest("the prompt is empty; give it some text")
    return text
