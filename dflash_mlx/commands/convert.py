"""`dflash-mlx convert`: flags to a `ConvertConfig`, progress to stderr, the outcome as a table."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx.commands.interrupt import INTERRUPTED
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.blas import choose_blas

if TYPE_CHECKING:
    from dflash_mlx.convert.options import ConvertConfig

_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Output folder.")]
_Draft = Annotated[
    str | None,
    typer.Option(help="A draft to convert too, into one pair folder; auto takes the known one."),
]
_Revision = Annotated[str | None, typer.Option(help="Commit or branch of SOURCE on the hub.")]
_DraftRevision = Annotated[str | None, typer.Option(help="The same for --draft.")]
_Bits = Annotated[int | None, typer.Option(help="2, 3, 4, 5, 6 or 8.  [default: 4]")]
_Group = Annotated[int | None, typer.Option(help="32, 64 or 128.  [default: 64]")]
_Mode = Annotated[
    str | None, typer.Option(help="affine, mxfp4, mxfp8 or nvfp4.  [default: affine]")
]
_Dtype = Annotated[
    str | None, typer.Option(help="bfloat16, float16 or float32.  [default: the source's]")
]
_Recipe = Annotated[
    str | None,
    typer.Option(
        help="uniform, head8, draft, auto:AVERAGE, or a TOML file.  [default: uniform, for a "
        "draft without --bits: draft]"
    ),
]
_Dequantize = Annotated[
    bool,
    typer.Option(
        "--dequantize",
        help="Undo the source's quantization; without --bits, --mode or --recipe that is all.",
    ),
]
_KeepUndivided = Annotated[
    bool,
    typer.Option("--keep-undivided", help="Leave weights unquantized that groups do not divide."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")]
_Verify = Annotated[bool, typer.Option(help="Compare the result with the source.")]
_Force = Annotated[
    bool, typer.Option("--force", help="Replace a model that is in the output folder.")
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
_Upload = Annotated[str | None, typer.Option(help="Then upload to this hub repository; asks.")]


def convert(
    source: Annotated[str, typer.Argument(help="A hub id, a nickname, a folder, or a file.")],
    out: _Out = None,
    draft: _Draft = None,
    revision: _Revision = None,
    draft_revision: _DraftRevision = None,
    bits: _Bits = None,
    group_size: _Group = None,
    mode: _Mode = None,
    dtype: _Dtype = None,
    recipe: _Recipe = None,
    dequantize: _Dequantize = False,
    keep_undivided: _KeepUndivided = False,
    dry_run: _DryRun = False,
    verify: _Verify = True,
    force: _Force = False,
    as_json: _Json = False,
    upload: _Upload = None,
) -> None:
    """Convert a target or a draft into a quantized MLX folder, in bounded memory, checked."""
    choose_blas("auto")  # before MLX is imported; checking multiplies matrices
    from dflash_mlx.convert.options import ConvertConfig

    if upload is not None and dry_run:
        raise BadRequest("--dry-run writes nothing that --upload could take; leave one of them out")
    if upload is not None:
        from dflash_mlx.convert.upload import check_repository

        check_repository(upload)
    config = ConvertConfig(
        source=source,
        out=out,
        draft=draft,
        revision=revision,
        draft_revision=draft_revision,
        bits=bits,
        group_size=group_size,
        mode=mode,
        dtype=dtype,
        recipe=recipe,
        dequantize=dequantize,
        keep_undivided=keep_undivided,
        verify=verify,
        force=force,
    )
    if dry_run:
        _plan(config, as_json)
    else:
        _run(config, as_json, upload)


def _plan(config: "ConvertConfig", as_json: bool) -> None:
    from dflash_mlx.commands.conversion_view import Bar, show_plan
    from dflash_mlx.convert.outcome import plan_table
    from dflash_mlx.convert.run import plan_conversion

    terminal = Terminal()
    with Bar(terminal) as bar:
        table = plan_table(config, plan_conversion(config, bar.watch))
    show_plan(terminal, table)
    if as_json:
        typer.echo(json.dumps(table))


def _run(config: "ConvertConfig", as_json: bool, upload: str | None) -> None:
    from dflash_mlx.commands.conversion_view import Bar, show_outcome, show_plan
    from dflash_mlx.convert.outcome import plan_table
    from dflash_mlx.convert.run import convert, plan_conversion
    from dflash_mlx.pairs.converted import remember
    from dflash_mlx.system.settings import settings_folder

    terminal = Terminal()
    try:
        with Bar(terminal) as bar:
            jobs = plan_conversion(config, bar.watch)
        show_plan(terminal, plan_table(config, jobs))
        with Bar(terminal) as bar:
            outcome = convert(config, bar.watch, jobs)
    except KeyboardInterrupt:
        terminal.say("stopped; the same command goes on where it stopped")
        raise typer.Exit(INTERRUPTED) from None
    try:
        remember(outcome.out, settings_folder())
    except OSError as error:
        terminal.say(f"{outcome.out} will not be listed by dflash-mlx models ({error.strerror})")
    table: dict[str, Any] = outcome.table()
    show_outcome(terminal, table)
    if upload is not None:
        table["uploaded"] = _upload(terminal, outcome.out, upload)
    if as_json:
        typer.echo(json.dumps(table))


def _upload(terminal: Terminal, folder: Path, repository: str) -> str | None:
    from dflash_mlx.convert.upload import upload_folder

    def ask(question: str) -> bool:
        typer.echo(f"{question} [y/N] ", err=True, nl=False)
        # nobody there to answer is a no
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    page = upload_folder(folder, repository, ask)
    terminal.say(f"uploaded: {page}" if page else "not uploaded", bold=True)
    return page
