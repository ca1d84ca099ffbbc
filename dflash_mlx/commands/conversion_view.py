"""How a conversion looks in a terminal: its plan, its progress and its outcome, on stderr."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dflash_mlx.commands.progress import byte_bars
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.hub.download import spelled_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from dflash_mlx.convert.progress import ConversionProgress

_PHASES = {
    "calibrate": "calibrating",
    "write": "writing",
    "check": "checking",
    "files": "writing side files",
    "publish": "finishing",
}
_EVERY_S = 10.0
"""Seconds between two lines about one phase where nobody watches a bar."""


class Bar:
    """Takes the converter's reports: a bar per phase on a screen, a line now and then elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told_at = time.monotonic()

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._terminal.told:
            self._bars = byte_bars()
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        if self._bars:
            self._bars.stop()

    def watch(self, report: "ConversionProgress") -> None:
        """Show one report."""
        if report.phase == "plan":
            self._terminal.say(report.detail, dim=True)
        elif report.phase != "shard":
            text = f"{_PHASES[report.phase]} {report.detail}".rstrip()
            self._draw(text, report.done, report.total)

    def _draw(self, text: str, done: int, total: int) -> None:
        if self._bars:
            if text not in self._tasks:
                self._tasks[text] = self._bars.add_task(text, total=total)
            self._bars.update(self._tasks[text], completed=done)
        elif time.monotonic() - self._told_at > _EVERY_S:
            self._told_at = time.monotonic()
            self._terminal.say(f"{text}: {100 * done // max(1, total)}%")


def show_plan(terminal: Terminal, plan: dict[str, Any]) -> None:
    """Say what will be done, and where."""
    for model in plan["models"]:
        terminal.say(f"{model['source']}: {model['described']}", bold=True)
        roles = ", ".join(f"{role} {bits:g}" for role, bits in model["bits_by_role"].items())
        terminal.say(f"  recipe   {model['recipe'] or 'none: weights stay as they are'}")
        terminal.say(f"  bits     {model['bits_per_weight']:.2f} per weight ({roles})")
        before, after = spelled_bytes(model["source_bytes"]), spelled_bytes(model["output_bytes"])
        terminal.say(f"  size     {before} to {after} in {len(model['shards'])} file(s)")
        if model["left_plain"]:
            terminal.say(f"  left unquantized: {', '.join(model['left_plain'])}")
    terminal.say(f"  memory   about {spelled_bytes(plan['peak_bytes'])}")
    needed, free = spelled_bytes(plan["disk_bytes"]), spelled_bytes(plan["free_bytes"])
    terminal.say(f"  disk     {needed} of {free} free")
    terminal.say(f"  into     {plan['out']}")


def show_outcome(terminal: Terminal, outcome: dict[str, Any]) -> None:
    """Say what became of it and how much was lost."""
    for model in outcome["models"]:
        if check := model.get("check"):
            _show_check(terminal, model["source"], check)
    terminal.say(f"done: {outcome['out']}", bold=True)


def _show_check(terminal: Terminal, name: str, check: dict[str, Any]) -> None:
    rounded = [error for error in check["worst"] if error["relative"]]
    terminal.say(f"{name}: {check['n_exact']} of {check['n_tensors']} tensors exact")
    if rounded:
        width = max(len(error["name"]) for error in rounded)
        terminal.say(f"  {'the worst':{width}}  error (rms)  largest")
        for error in rounded:
            figures = f"{error['relative']:11.4f}  {error['largest']:7.4f}"
            terminal.say(f"  {error['name']:{width}}  {figures}")
    for what in ("divergence", "acceptance"):
        found, skipped = check[what], check[f"{what}_skipped"]
        if found:
            facts = ", ".join(f"{key.replace('_', ' ')} {_short(found[key])}" for key in found)
            terminal.say(f"  {what}: {facts}")
        elif skipped:
            terminal.say(f"  {what}: not measured, {skipped}")
    peak = spelled_bytes(check["peak_bytes"])
    terminal.say(f"  checking took {check['seconds']:.1f} s; peak memory so far {peak}")


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
