"""Plan, progress and result of a training run as text on stderr."""

import time
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dflash_mlx.commands.terminal import Terminal, exit_now

if TYPE_CHECKING:
    from dflash_mlx.train.job import Result
    from dflash_mlx.train.plan import Plan
    from dflash_mlx.train.preparing import Prepared
    from dflash_mlx.train.reports import Report, Watcher

_LOG_INTERVAL_S = 30.0
"""Seconds between two lines in a log; a run of an hour then writes about 120."""

_PHASES = {
    "probe": "measuring this machine again with all samples",
    "write": "writing samples",
    "train": "step",
    "measure": "decoding held-out prompts",
    "publish": "writing the draft",
}


class TrainingProgressView:
    """Shows a running training: a status line on a screen, a line per 30 s in a log."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._logged_at = 0.0
        self._stopped = False

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the status line."""
        self._terminal.clear_status()

    @property
    def watcher(self) -> "Watcher":
        """Return the callbacks to pass to the training job."""
        from dflash_mlx.train.reports import Watcher

        return Watcher(self._report, lambda: self._stopped)

    def stop(self) -> None:
        """Ask the run to stop after the current step; the second call ends the process."""
        if self._stopped:
            exit_now(self._terminal)
        self._stopped = True
        self._terminal.write_stderr_raw(
            "\nstopping after this step; finished work is saved; press Ctrl-C again to exit\n"
        )

    def _report(self, report: "Report") -> None:
        text = _PHASES[report.phase]
        if report.phase in ("write", "train"):
            text += f" {report.done} of {report.total}"
            if report.left_s is not None:
                text += f", {spelled_time(report.left_s)} left"
        if report.detail:
            text += f": {report.detail}"
        if report.phase == "measure" and report.detail:
            self._terminal.log(f"step {report.done} of {report.total}: {report.detail}")
        elif self._terminal.stderr_is_tty:
            self._terminal.show_status(text)
        elif time.monotonic() - self._logged_at > _LOG_INTERVAL_S or report.done == report.total:
            self._logged_at = time.monotonic()
            self._terminal.log(text)


def print_plan(terminal: Terminal, prepared: "Prepared", plan: "Plan") -> None:
    """Print the draft's shape, the data, the recipe, and the memory, disk and time needed."""
    from dflash_mlx.hub.download import spelled_bytes

    draft, schedule, needs = prepared.beginning.draft.model.config, plan.schedule, plan.needs
    kind = "DFlash 2 draft" if draft.selector else "draft"
    terminal.log(f"{kind} for {prepared.opened.name}", bold=True)
    begun = f", initialised from {prepared.config.init}" if prepared.config.init else ""
    terminal.log(
        f"  draft    {plan.parameters / 1e6:.1f}M parameters, {plan.trained / 1e6:.1f}M of them "
        f"trained: {draft.num_hidden_layers} layers, block size {draft.block_size}, target layers "
        f"{', '.join(map(str, draft.target_layer_ids))}, mask token {draft.mask_token_id}{begun}"
    )
    written = ", written by the target" if prepared.data.writes else ""
    terminal.log(
        f"  data     {prepared.data.source}: {schedule.n_samples} samples, about "
        f"{plan.n_answer_tokens} answer tokens{written}"
    )
    if prepared.data.dropped:
        terminal.log(f"           {prepared.data.dropped}")
    recipe = plan.recipe
    terminal.log(
        f"  recipe   {recipe.steps} steps of {recipe.sequences} samples with up to "
        f"{recipe.anchors} blocks each ({plan.passes:.1f} passes), peak rate "
        f"{recipe.learning_rate:g}, seed {recipe.seed}"
    )
    can = f" of {spelled_bytes(plan.usable_bytes)}" if plan.usable_bytes else ""
    terminal.log(
        f"  memory   about {spelled_bytes(needs.total)}{can}: target "
        f"{spelled_bytes(needs.target)}, weights {spelled_bytes(needs.weights)}, gradients "
        f"{spelled_bytes(needs.gradients)}, moments {spelled_bytes(needs.moments)}, activations "
        f"{spelled_bytes(needs.activations)}; measured peak {spelled_bytes(plan.peak_bytes)}"
    )
    if plan.gave_way:
        terminal.log(f"           reduced to fit memory: {'; '.join(plan.gave_way)}")
    terminal.log(
        f"  disk     {spelled_bytes(plan.cache_bytes)} for features of "
        f"{spelled_bytes(plan.feature_bytes)}, of {spelled_bytes(plan.free_bytes)} free"
    )
    terminal.log(
        f"  time     {spelled_time(schedule.total_s)}: writing {spelled_time(schedule.write_s)}, "
        f"features {spelled_time(schedule.feature_s)}, steps {spelled_time(schedule.train_s)} "
        f"({plan.speeds.step_s:.2f} s each), measuring {spelled_time(schedule.measure_s)}"
    )
    terminal.log(f"  into     {prepared.config.out}")


def print_result(terminal: Terminal, result: "Result", target: str) -> None:
    """Print the outcome of a run for `target` (a name or path) and how to try the draft."""
    if not result.finished:
        terminal.log("stopped; the same command with --resume continues where it stopped")
    if result.out is None:
        return
    found = [line["sequential"] for line in result.measured]
    if found:
        best = max(found, key=lambda found: found["tokens_per_round"])
        kinds = ", ".join(f"{kind} {value:.2f}" for kind, value in best["by_kind"].items())
        terminal.log(
            f"{best['tokens_per_round']:.2f} tokens per round in greedy decoding ({kinds})"
        )
    label = "done" if result.finished else "best draft so far"
    terminal.log(f"{label}: {result.out}", bold=True)
    terminal.log(
        f"  try it   dflash-mlx chat --model {quote(target)} --draft {quote(str(result.out))}"
    )
    terminal.log(f"  curves   {result.out / 'curves.html'}")
    if result.finished:
        terminal.log(f"  {result.run} holds the samples and the last checkpoint; it can be deleted")


def spelled_time(seconds: float) -> str:
    """Return a duration in its one or two largest units, for example "1 h 2 min"."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
