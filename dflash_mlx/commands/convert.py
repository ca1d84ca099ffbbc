"""`dflash-mlx convert`: flags to a `ConvertConfig`, progress on stderr, the outcome as a table."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from dflash_mlx.commands.options import JsonOption, prepare
from dflash_mlx.commands.progress import LOG_INTERVAL_S, byte_bars
from dflash_mlx.commands.terminal import INTERRUPTED, Terminal
from dflash_mlx.errors import BadRequest
from dflash_mlx.hub.download import spelled_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from dflash_mlx.convert.options import ConvertConfig
    from dflash_mlx.convert.progress import ConversionProgress


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of `convert`."""

    source: Annotated[
        str, typer.Argument(help="Hugging Face id, nickname, folder or file to convert.")
    ]
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder.")] = None
    draft: Annotated[
        str | None,
        typer.Option(help="Also convert this draft into the same folder; auto: the known draft."),
    ] = None
    revision: Annotated[str | None, typer.Option(help="Commit or branch of SOURCE on the hub.")] = (
        None
    )
    draft_revision: Annotated[
        str | None, typer.Option(help="Commit or branch of the draft on the hub.")
    ] = None
    bits: Annotated[
        int | None, typer.Option(help="Bits per weight: 2, 3, 4, 5, 6 or 8.  [default: 4]")
    ] = None
    group_size: Annotated[
        int | None, typer.Option(help="Weights per scale: 32, 64 or 128.  [default: 64]")
    ] = None
    mode: Annotated[
        str | None,
        typer.Option(help="Quantization mode: affine, mxfp4, mxfp8 or nvfp4.  [default: affine]"),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of unquantized weights: bfloat16, float16 or float32.  [default: the "
            "source's]"
        ),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Bits by layer: uniform, head8, draft, auto:AVERAGE, or a TOML file.  [default: "
            "uniform; draft for a draft without --bits]"
        ),
    ] = None
    dequantize: Annotated[
        bool,
        typer.Option(
            "--dequantize",
            help="Dequantize the source; it stays so without --bits, --mode or --recipe.",
        ),
    ] = False
    keep_undivided: Annotated[
        bool,
        typer.Option(
            "--keep-undivided", help="Keep weights that the group size does not divide as they are."
        ),
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and write nothing.")
    ] = False
    verify: Annotated[bool, typer.Option(help="Compare the result with the source.")] = True
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model in the output folder.")
    ] = False
    keep_original: Annotated[
        bool,
        typer.Option(
            "--keep-original",
            help="Download a source from the hub completely and keep it in the hub cache; "
            "otherwise its shards are converted and deleted one at a time.",
        ),
    ] = False
    as_json: JsonOption = False
    upload: Annotated[
        str | None,
        typer.Option(help="Upload the result to this hub repository after a confirmation."),
    ] = None


def convert(options: ConvertOptions) -> None:
    """Convert a target or a draft into a quantized MLX folder in bounded memory, and verify it."""
    prepare("auto")  # before MLX is imported; verification multiplies matrices
    from dflash_mlx.convert.options import ConvertConfig

    if options.upload is not None and options.dry_run:
        raise BadRequest("--dry-run writes nothing that --upload could send; omit one of them")
    if options.upload is not None:
        from dflash_mlx.convert.upload import check_repository

        check_repository(options.upload)
    config = ConvertConfig(
        source=options.source,
        out=options.out,
        draft=options.draft,
        revision=options.revision,
        draft_revision=options.draft_revision,
        bits=options.bits,
        group_size=options.group_size,
        mode=options.mode,
        dtype=options.dtype,
        recipe=options.recipe,
        dequantize=options.dequantize,
        keep_undivided=options.keep_undivided,
        verify=options.verify,
        force=options.force,
        keep_original=options.keep_original,
    )
    if options.dry_run:
        _plan(config, options.as_json)
    else:
        _run(config, options.as_json, options.upload)


def _plan(config: "ConvertConfig", as_json: bool) -> None:
    from dflash_mlx.convert.outcome import plan_table
    from dflash_mlx.convert.run import plan_conversion

    terminal = Terminal()
    with ConversionBars(terminal) as bars:
        table = plan_table(config, plan_conversion(config, bars.show))
    _print_plan(terminal, table)
    if as_json:
        typer.echo(json.dumps(table))


def _run(config: "ConvertConfig", as_json: bool, upload: str | None) -> None:
    from dflash_mlx.convert.outcome import plan_table
    from dflash_mlx.convert.run import convert, plan_conversion
    from dflash_mlx.pairs.converted import remember
    from dflash_mlx.system.settings import settings_folder

    terminal = Terminal()
    try:
        with ConversionBars(terminal) as bars:
            jobs = plan_conversion(config, bars.show)
        _print_plan(terminal, plan_table(config, jobs))
        with ConversionBars(terminal) as bars:
            outcome = convert(config, bars.show, jobs)
    except KeyboardInterrupt:
        terminal.log("stopped; the same command continues where it stopped")
        raise typer.Exit(INTERRUPTED) from None
    try:
        remember(outcome.out, settings_folder())
    except OSError as error:
        terminal.log(f"dflash-mlx models will not list {outcome.out} ({error.strerror})")
    table: dict[str, Any] = outcome.table()
    _print_outcome(terminal, table)
    if upload is not None:
        table["uploaded"] = _upload(terminal, outcome.out, upload)
    if as_json:
        typer.echo(json.dumps(table))


def _upload(terminal: Terminal, folder: Path, repository: str) -> str | None:
    from dflash_mlx.convert.upload import upload_folder

    def ask(question: str) -> bool:
        typer.echo(f"{question} [y/N] ", err=True, nl=False)
        return sys.stdin.readline().strip().lower() in ("y", "yes")  # end of input means no

    page = upload_folder(folder, repository, ask)
    terminal.log(f"uploaded: {page}" if page else "not uploaded", bold=True)
    return page


_PHASES = {
    "calibrate": "calibrating",
    "download": "downloading",
    "write": "writing",
    "check": "checking",
    "files": "writing side files",
    "publish": "finishing",
}


class ConversionBars:
    """Shows the converter's reports: a bar per phase on a screen, a line per 10 s elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._logged_at = time.monotonic()

    def __enter__(self) -> Self:
        """Start the bars on a screen."""
        if self._terminal.stderr_is_tty:
            self._bars = byte_bars()
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bars."""
        if self._bars:
            self._bars.stop()

    def show(self, report: "ConversionProgress") -> None:
        """Show one report."""
        if report.phase == "plan":
            self._terminal.log(report.detail, dim=True)
        elif report.phase != "shard":
            text = f"{_PHASES[report.phase]} {report.detail}".rstrip()
            self._draw(text, report)

    def _draw(self, text: str, report: "ConversionProgress") -> None:
        done, total = report.done, report.total
        if self._bars:
            if text not in self._tasks:
                self._tasks[text] = self._bars.add_task(text, total=total)
            self._bars.update(self._tasks[text], completed=done)
        elif time.monotonic() - self._logged_at > LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            line = f"{text}: {100 * done // max(1, total)}%"
            if report.bytes_per_s is not None:
                line += f", {spelled_bytes(int(report.bytes_per_s))}/s"
            if report.seconds_left is not None:
                minutes, seconds = divmod(round(report.seconds_left), 60)
                line += f", {minutes} min {seconds} s left"
            self._terminal.log(line)


def _print_plan(terminal: Terminal, plan: dict[str, Any]) -> None:
    """Print the recipe, sizes, memory, disk and destination of a conversion."""
    for model in plan["models"]:
        terminal.log(f"{model['source']}: {model['described']}", bold=True)
        roles = ", ".join(f"{role} {bits:g}" for role, bits in model["bits_by_role"].items())
        terminal.log(f"  recipe   {model['recipe'] or 'none: weights are not quantized again'}")
        terminal.log(f"  bits     {model['bits_per_weight']:.2f} per weight ({roles})")
        before, after = spelled_bytes(model["source_bytes"]), spelled_bytes(model["output_bytes"])
        terminal.log(f"  size     {before} to {after} in {len(model['shards'])} file(s)")
        if model["left_plain"]:
            terminal.log(f"  left unquantized: {', '.join(model['left_plain'])}")
    terminal.log(f"  memory   about {spelled_bytes(plan['peak_bytes'])}")
    needed, free = spelled_bytes(plan["disk_bytes"]), spelled_bytes(plan["free_bytes"])
    terminal.log(f"  disk     {needed} of {free} free")
    if plan["download_bytes"]:
        terminal.log(
            f"  download {spelled_bytes(plan['download_bytes'])} in shards of at most "
            f"{spelled_bytes(plan['shard_bytes'])}, each deleted after it is converted"
        )
    terminal.log(f"  into     {plan['out']}")


def _print_outcome(terminal: Terminal, outcome: dict[str, Any]) -> None:
    """Print the checks of each converted model and the output folder."""
    for model in outcome["models"]:
        if check := model.get("check"):
            _print_check(terminal, model["source"], check)
    terminal.log(f"done: {outcome['out']}", bold=True)


def _print_check(terminal: Terminal, name: str, check: dict[str, Any]) -> None:
    rounded = [error for error in check["worst"] if error["relative"]]
    terminal.log(f"{name}: {check['n_exact']} of {check['n_tensors']} tensors exact")
    if rounded:
        width = max(len(error["name"]) for error in rounded)
        terminal.log(f"  {'largest errors':{width}}  error (rms)  largest")
        for error in rounded:
            figures = f"{error['relative']:11.4f}  {error['largest']:7.4f}"
            terminal.log(f"  {error['name']:{width}}  {figures}")
    for what in ("divergence", "acceptance"):
        found, skipped = check[what], check[f"{what}_skipped"]
        if found:
            facts = ", ".join(f"{key.replace('_', ' ')} {_short(found[key])}" for key in found)
            terminal.log(f"  {what}: {facts}")
        elif skipped:
            terminal.log(f"  {what}: not measured, {skipped}")
    peak = spelled_bytes(check["peak_bytes"])
    terminal.log(f"  checking took {check['seconds']:.1f} s; peak memory so far {peak}")


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
