"""`dflash-mlx bench`: is DFlash worth it on this machine, and with which setting?"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.commands.interrupt import INTERRUPTED
from dflash_mlx.commands.opening import open_pair
from dflash_mlx.commands.options import blas_choice, kernel_policy
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.blas import choose_blas
from dflash_mlx.system.paths import typed_path

if TYPE_CHECKING:
    from dflash_mlx.bench.earlier import EarlierRun
    from dflash_mlx.bench.run import BenchConfig
    from dflash_mlx.bench.suites import BenchPrompt
    from dflash_mlx.bench.summary import BenchReport
    from dflash_mlx.engine.engine import Engine


def bench(
    model: Annotated[
        str, typer.Option("--model", "-m", help="The pair to measure, named as for chat.")
    ] = "smollm2-135m",
    draft: Annotated[str, typer.Option(help="auto, or a name.")] = "auto",
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="chat, code, arithmetic, lists, translation or structured. [default: all]",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="gsm8k, humaneval, mbpp, mt-bench, math-500, or a .jsonl file; repeatable.",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of each kind or data set.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 256,
    repeats: Annotated[int, typer.Option(help="Timed answers of each arm to each prompt.")] = 3,
    block_sizes: Annotated[
        str, typer.Option(metavar="N,N,...", help="Fixed blocks to measure besides auto.")
    ] = "",
    contexts: Annotated[
        str, typer.Option(metavar="N,N,...", help="Long documents of so many tokens, besides.")
    ] = "",
    cool_down: Annotated[float, typer.Option(help="Seconds to rest before each answer.")] = 0.0,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the report as a page.")
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="FILE", help="Set an earlier --json beside this run.")
    ] = None,
    kernels: Annotated[
        str, typer.Option(help="auto, off or force: which of our Metal kernels serve blocks.")
    ] = "auto",
    blas: Annotated[str, typer.Option(help="auto, bundled or openblas (Linux).")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Compare DFlash with plain mlx-lm decoding of the same arrays, texts first.

    The exit code is 1 where a text is not the target's own, the page could not be written, or
    the run was broken off; 130 after Ctrl-C. What was measured is printed all the same.
    """
    policy = kernel_policy(kernels)
    choose_blas(blas_choice(blas))
    from dflash_mlx.bench.earlier import read_earlier
    from dflash_mlx.bench.run import BenchConfig

    widths, lengths = numbers("--block-sizes", block_sizes), numbers("--contexts", contexts)
    config = BenchConfig(max_tokens, repeats, widths, lengths, cool_down)
    _check(model, draft, compare, as_json)
    work = _prompts(kind, data, prompts, config)
    before = read_earlier(typed_path(compare)) if compare else None
    page = _writable(html) if html else None
    terminal = Terminal()
    with open_pair(model, draft, terminal, policy) as engine:
        engine.autotune_kernels(terminal.show)  # now: not between answers that are timed
        report = _measure(engine, work, config, terminal)
        terminal.erase()
        # before the engine is closed, which may be waited for
        written = page is None or _write(report, page, terminal)
        _show(report, before, as_json)
    _leave(report, written)


def _check(model: str, draft: str, compare: str | None, as_json: bool) -> None:
    """Refuse what can be known to be impossible before anything is loaded."""
    if as_json and compare:
        raise BadRequest("--compare is printed beside a table; leave out --json")
    from dflash_mlx.doctor.checkup import locate
    from dflash_mlx.hub.pins import Pins
    from dflash_mlx.pairs.pairing import choose
    from dflash_mlx.system.settings import settings_folder

    choice = choose(model, draft)
    locate(choice, Pins(settings_folder()))
    if choice.draft is None:
        raise BadRequest(f"{model} is left without a draft to measure; name one with --draft")


def _leave(report: "BenchReport", written: bool) -> None:
    """Leave with the exit code that the help promises."""
    from dflash_mlx.bench.run import INTERRUPT_REASON

    if report.interrupted_reason == INTERRUPT_REASON:
        raise typer.Exit(INTERRUPTED)
    if report.interrupted_reason or not report.exact or not written:
        raise typer.Exit(1)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 2,4,8.

    Raises:
        BadRequest: it is no such list.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise BadRequest(f"{option} is {text!r}; it needs numbers such as 2,4,8") from error


def _prompts(
    kinds: Sequence[str] | None, data: Sequence[str] | None, count: int, config: "BenchConfig"
) -> list["BenchPrompt"]:
    from dflash_mlx.bench.suites import KINDS, bundled, data_set

    if count < 0:
        raise BadRequest(f"--prompts is {count}; it needs a whole number >= 0")
    found = [prompt for name in data or () for prompt in data_set(name, count)]
    if kinds or not data:
        found = [*bundled(kinds or KINDS, count), *found]
    if not found and not config.contexts:
        raise BadRequest("there are no prompts to measure with; see --prompts, --kind and --data")
    return found


def _measure(
    engine: "Engine", work: Sequence["BenchPrompt"], config: "BenchConfig", terminal: Terminal
) -> "BenchReport":
    from dflash_mlx.bench.arms import prompt_ids
    from dflash_mlx.bench.forwards import forwards, memory_speed
    from dflash_mlx.bench.run import INTERRUPT_REASON, run
    from dflash_mlx.bench.summary import summarise
    from dflash_mlx.bench.thermal import thermal_state

    measured = run(engine, work, config, terminal.show)
    bare, speed = [], None
    if not measured.interrupted_reason:
        terminal.show("timing the bare forwards")
        ids = prompt_ids(engine, measured.prompts[0])
        try:
            bare = forwards(engine, ids, [1, *config.block_sizes])
            speed = memory_speed(engine)
        except KeyboardInterrupt:
            measured.interrupted_reason = INTERRUPT_REASON
    return summarise(engine, measured, config, bare, speed, thermal_state())


def _write(report: "BenchReport", file: Path, terminal: Terminal) -> bool:
    """Write the page; return whether there was room. An hour's figures are printed either way."""
    from dflash_mlx.bench.page import page

    try:
        file.write_text(page(report), encoding="utf-8")
    except OSError as error:
        terminal.say(f"{file} cannot be written ({error.strerror}); the figures follow")
        return False
    terminal.say(f"wrote {file}", dim=True)
    return True


def _show(report: "BenchReport", before: "EarlierRun | None", as_json: bool) -> None:
    from dflash_mlx.bench.earlier import side_by_side
    from dflash_mlx.bench.report import lines

    if as_json:
        typer.echo(json.dumps(report.as_values(), ensure_ascii=False))
        return
    for line in lines(report):
        typer.echo(line)
    if before is not None:
        typer.echo("")
        for line in side_by_side(before, report):
            typer.echo(line)


def _writable(name: str) -> Path:
    """Return the path of the page to write, refused before an hour of measuring if it cannot be.

    Raises:
        BadRequest: its folder is not there.
    """
    path = typed_path(name)
    if os.path.isdir(path) or not os.path.isdir(path.parent):
        raise BadRequest(f"{name} cannot be written; --html needs a file in a folder that exists")
    return path
