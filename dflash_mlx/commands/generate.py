"""`dflash-mlx generate`: one prompt in, the answer on stdout, everything else on stderr."""

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from dflash_mlx.commands.inference import describe, open_pair, print_answer
from dflash_mlx.commands.options import (
    JsonOption,
    RequestOptions,
    compute_dtype,
    kernel_policy,
    prepare,
)
from dflash_mlx.commands.stats_view import stats_line
from dflash_mlx.commands.terminal import INTERRUPTED, Terminal
from dflash_mlx.errors import BadRequest


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(RequestOptions):
    """Options of `generate`."""

    prompt: Annotated[str, typer.Argument(help="The prompt, or - to read it from stdin.")]
    no_chat_template: Annotated[
        bool,
        typer.Option("--no-chat-template", help="Continue the prompt without the chat template."),
    ] = False
    as_json: JsonOption = False


def generate(options: GenerateOptions) -> None:
    """Answer one prompt and write only the text to stdout.

    Each token is the argmax, or a sample, of the target's own forward pass.
    """
    options.check()
    text = _read_prompt(options.prompt)
    if options.system and options.no_chat_template:
        raise BadRequest("--system needs the chat template; put its text into the prompt")
    if options.thinking is not None and options.no_chat_template:
        raise BadRequest("--thinking needs the chat template; omit --no-chat-template or it")
    prepare(options.blas)
    terminal = Terminal()
    policy, dtype = kernel_policy(options.kernels), compute_dtype(options.dtype)
    with open_pair(options.model, options.draft, terminal, policy, dtype, options.bits) as engine:
        config = options.generation(
            engine.loaded.sampling, chat_template=not options.no_chat_template
        )
        stream = engine.session(options.system).stream(text, config)
        for line in describe(engine, config, options):
            terminal.log(line, dim=True)
        result = print_answer(stream, terminal, text=not options.as_json)
    if options.as_json:
        terminal.write(json.dumps(result.as_dict(), ensure_ascii=False) + "\n")
    terminal.end_line(exact=True)
    terminal.log(stats_line(result), dim=True)
    if result.finish_reason == "cancelled":
        raise typer.Exit(INTERRUPTED)


def _read_prompt(argument: str) -> str:
    """Return the prompt, read from stdin if the argument is `-`.

    Raises:
        BadRequest: it is empty or not UTF-8.
    """
    try:
        text = sys.stdin.buffer.read().decode() if argument == "-" else argument
        text.encode()
    except UnicodeError as error:
        raise BadRequest(f"the prompt is not UTF-8 text ({error}); convert it first") from error
    if not text.strip():
        raise BadRequest("the prompt is empty; give it some text")
    return text
