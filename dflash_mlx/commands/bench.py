"""`dflash-mlx bench`: measures DFlash against plain decoding and recommends a setting."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.commands.inference import open_pair
from dflash_mlx.commands.options import (
    DEFAULT_MODEL,
    BitsOption,
    BlasOption,
    DraftOption,
    DTypeOption,
    JsonOption,
    KernelsOption,
    ModelOption,
    compute_dtype,
    kernel_policy,
    parse_numbers,
    prepare,
)
from dflash_mlx.commands.terminal import INTERRUPTED, Terminal
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.paths import typed_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_mlx.bench.earlier import EarlierRun
    from dflash_mlx.bench.run import BenchConfig
    from dflash_mlx.bench.suites import BenchPrompt
    from dflash_mlx.bench.summary import BenchReport
    from dflash_mlx.engine.engine import Engine


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `bench`."""

    model: ModelOption = DEFAULT_MODEL
    draft: DraftOption = "auto"
    bits: BitsOption = "auto"
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Bundled prompts: chat, code, arithmetic, lists, translation or structured; "
            "repeatable. [default: all]",
        ),
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Data set: gsm8k, humaneval, mbpp, mt-bench, math-500, or a .jsonl file; "
            "repeatable.",
        ),
    ] = None
    prompts: Annotated[int, typer.Option(help="Prompts per kind or data set.")] = 2
    max_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 256
    repeats: Annotated[int, typer.Option(help="Timed answers per prompt and configuration.")] = 3
    block_sizes: Annotated[
        str,
        typer.Option(metavar="N,N,...", help="Also measure these fixed block sizes."),
    ] = ""
    contexts: Annotated[
        str,
        typer.Option(metavar="N,N,...", help="Also measure prompts of these lengths, in tokens."),
    ] = ""
    copies: Annotated[
        bool, typer.Option(help="Also measure auto with draft tokens copied from the context.")
    ] = False
    cool_down: Annotated[float, typer.Option(help="Pause before each answer, in seconds.")] = 0.0
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the report as an HTML page.")
    ] = None
    compare: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare with the --json output of an earlier run."),
    ] = None
    dtype: DTypeOption = "auto"
    kernels: KernelsOption = "auto"
    blas: BlasOption = "auto"
    as_json: JsonOption = False


def bench(options: BenchOptions) -> None:
    """Compare DFlash with plain mlx-lm decoding of the same arrays; texts are compared first.

    The exit code is 1 if a text differs, the page cannot be written or the run stops early, and
    130 after Ctrl-C. The figures measured so far are printed in each case.
    """
    policy, dtype = kernel_policy(options.kernels), compute_dtype(options.dtype)
    prepare(options.blas)
    from dflash_mlx.bench.earlier import read_earlier
    from dflash_mlx.bench.run import BenchConfig

    config = BenchConfig(
        options.max_tokens,
        options.repeats,
        parse_numbers("--block-sizes", options.block_sizes),
        parse_numbers("--contexts", options.contexts),
        options.cool_down,
        options.copies,
    )
    _check(options)
    work = _prompts(options, config)
    before = read_earlier(typed_path(options.compare)) if options.compare else None
    page = _check_writable(options.html) if options.html else None
    terminal = Terminal()
    with open_pair(options.model, options.draft, terminal, policy, dtype, options.bits) as engine:
        engine.autotune_kernels(terminal.show_status)  # not between answers that are timed
        report = _measure(engine, work, config, terminal)
        terminal.clear_status()
        # before the engine is closed, which can take a while
        written = page is None or _write_page(report, page, terminal)
        _print(report, before, options.as_json)
    _exit(report, written)


def _check(options: BenchOptions) -> None:
    """Check the options and the pair's name before anything is loaded.

    Raises:
        BadRequest: the options contradict each other, or the pair has no draft.
        UnknownModel: a name cannot exist.
    """
    if options.as_json and options.compare:
        raise BadRequest("--compare prints a table; omit --json")
    from dflash_mlx.doctor.checkup import locate
    from dflash_mlx.hub.pins import Pins
    from dflash_mlx.pairs.pairing import choose
    from dflash_mlx.system.settings import settings_folder

    choice = choose(options.model, options.draft)
    locate(choice, Pins(settings_folder()))
    if choice.draft is None:
        raise BadRequest(f"{options.model} has no draft to measure; name one with --draft")


def _exit(report: "BenchReport", written: bool) -> None:
    """Exit with the code that the help documents."""
    from dflash_mlx.bench.run import INTERRUPT_REASON

    if report.interrupted_reason == INTERRUPT_REASON:
        raise typer.Exit(INTERRUPTED)
    if report.interrupted_reason or not report.exact or not written:
        raise typer.Exit(1)


def _prompts(options: BenchOptions, config: "BenchConfig") -> list["BenchPrompt"]:
    from dflash_mlx.bench.suites import KINDS, bundled, data_set

    count = options.prompts
    if count < 0:
        raise BadRequest(f"--prompts is {count}; it needs a whole number >= 0")
    found = [prompt for name in options.data or () for prompt in data_set(name, count)]
    if options.kind or not options.data:
        found = [*bundled(options.kind or KINDS, count), *found]
    if not found and not config.contexts:
        raise BadRequest("there are no prompts to measure; see --prompts, --kind and --data")
    return found


def _measure(
    engine: "Engine", work: "Sequence[BenchPrompt]", config: "BenchConfig", terminal: Terminal
) -> "BenchReport":
    from dflash_mlx.bench.arms import prompt_ids
    from dflash_mlx.bench.forwards import forwards, memory_speed
    from dflash_mlx.bench.run import INTERRUPT_REASON, run
    from dflash_mlx.bench.summary import summarise
    from dflash_mlx.bench.thermal import thermal_state

    measured = run(engine, work, config, terminal.show_status)
    bare, speed = [], None
    if not measured.interrupted_reason:
        terminal.show_status("timing single forwards")
        ids = prompt_ids(engine, measured.prompts[0])
        try:
            bare = forwards(engine, ids, [1, *config.block_sizes])
            speed = memory_speed(engine)
        except KeyboardInterrupt:
            measured.interrupted_reason = INTERRUPT_REASON
    return summarise(engine, measured, config, bare, speed, thermal_state())


def _write_page(report: "BenchReport", file: Path, terminal: Terminal) -> bool:
    """Write the HTML page and return whether that succeeded; the figures are printed anyway."""
    from dflash_mlx.bench.page import page

    try:
        file.write_text(page(report), encoding="utf-8")
    except OSError as error:
        terminal.log(f"{file} cannot be written ({error.strerror}); the figures follow")
        return False
    terminal.log(f"wrote {file}", dim=True)
    return True


def _print(report: "BenchReport", before: "EarlierRun | None", as_json: bool) -> None:
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


def _check_writable(name: str) -> Path:
    """Return the path of the page; an unwritable path is refused before an hour of measuring.

    Raises:
        BadRequest: the path is a folder, or its folder does not exist.
    """
    path = typed_path(name)
    if os.path.isdir(path) or not os.path.isdir(path.parent):
        raise BadRequest(f"{name} cannot be written; --html needs a file in a folder that exists")
    return path
