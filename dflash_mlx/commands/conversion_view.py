"""How a conversion looks in a terminal: its plan, its progress and its outcome, on stderr."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from dflash_mlx.convert import Progress as Report

_PHASES = {
    "plan": "reading headers",
    "calibrate": "calibrating",
    "write": "writing",
    "check": "checking",
    "files": "side files",
    "publish": "finishing",
}


class Bar:
    """A progress bar that takes the converter's reports; one line per phase."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self._bars.stop()

    def watch(self, report: "Report") -> None:
        """Show one report."""
        if report.phase == "plan":
            self.console.print(report.detail, style="dim", highlight=False)
            return
        if report.phase == "shard":
            return
        key = f"{report.phase} {report.detail}"
        if key not in self._tasks:
            text = f"{_PHASES[report.phase]} {report.detail}"
            self._tasks[key] = self._bars.add_task(text, total=report.total)
        self._bars.update(self._tasks[key], completed=report.done)


def show_plan(plan: dict[str, Any]) -> None:
    """Print what will be done, and where."""
    console = Console(stderr=True)
    for model in plan["models"]:
        packing = model["recipe"] or "weights kept as they are"
        console.print(
            f"[bold]{model['source']}[/bold]: {model['described']}\n"
            f"  {packing}, {model['bits_per_weight']:.2f} bits per weight ({_roles(model)}), "
            f"{size(model['source_bytes'])} to {size(model['output_bytes'])} in "
            f"{len(model['shards'])} files",
            highlight=False,
        )
        if model["left_plain"]:
            console.print(f"  left unquantized: {', '.join(model['left_plain'])}", highlight=False)
    console.print(
        f"into {plan['out']}: {size(plan['disk_bytes'])} of {size(plan['free_bytes'])} free, "
        f"about {size(plan['peak_bytes'])} of memory",
        highlight=False,
    )


def show_outcome(outcome: dict[str, Any]) -> None:
    """Print what became of it and how much was lost."""
    console = Console(stderr=True)
    for model in outcome["models"]:
        check = model.get("check")
        if check:
            _show_check(console, model["source"], check)
    console.print(f"[bold]{outcome['out']}[/bold]", highlight=False)


def _show_check(console: Console, name: str, check: dict[str, Any]) -> None:
    table = Table(title=f"{name}: {check['n_exact']} of {check['n_tensors']} tensors exact; worst")
    for heading in ("tensor", "error (rms, relative)", "largest error of a value"):
        table.add_column(heading)
    for error in check["worst"]:
        if error["relative"]:
            table.add_row(error["name"], f"{error['relative']:.4f}", f"{error['largest']:.4f}")
    if table.rows:
        console.print(table)
    for what in ("divergence", "acceptance"):
        found, skipped = check[what], check[f"{what}_skipped"]
        if found:
            facts = ", ".join(f"{key.replace('_', ' ')} {_short(found[key])}" for key in found)
            console.print(f"{what}: {facts}", highlight=False)
        elif skipped:
            console.print(f"{what} not measured: {skipped}", highlight=False)
    console.print(
        f"checking took {check['seconds']:.1f} s, peak memory {size(check['peak_bytes'])}",
        highlight=False,
    )


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _roles(model: dict[str, Any]) -> str:
    return ", ".join(f"{role} {bits:g}" for role, bits in model["bits_by_role"].items())


def size(n_bytes: int) -> str:
    """A number of bytes for a person, in decimal units."""
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= width:
            return f"{n_bytes / width:.2f} {unit}"
    return f"{n_bytes} bytes"
