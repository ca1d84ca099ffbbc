"""How a training run looks in a terminal: its plan, its progress and its result, on stderr."""

import time
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dflash_mlx.commands.interrupt import leave
from dflash_mlx.commands.terminal import Terminal

if TYPE_CHECKING:
    from dflash_mlx.train.job import Result
    from dflash_mlx.train.plan import Plan
    from dflash_mlx.train.preparing import Prepared
    from dflash_mlx.train.reports import Report, Watcher

_EVERY_S = 30.0
"""Seconds between two lines about training where nobody watches, or watches a log grow."""

_WORDS = {
    "probe": "measuring this machine again, with all samples",
    "write": "writing samples",
    "train": "step",
    "measure": "decoding held-out prompts",
    "publish": "writing the draft",
}


class Working:
    """Shows a run at work: a line that changes on a screen, a line now and then elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._told_at = 0.0
        self._stopped = False

    def __enter__(self) -> Self:
        """Begin to show."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take away the line that changes."""
        self._terminal.erase()

    @property
    def watcher(self) -> "Watcher":
        """What a run wants to be given."""
        from dflash_mlx.train.reports import Watcher

        return Watcher(self._report, lambda: self._stopped)

    def stop(self) -> None:
        """Ask the run to stop at its next step; asked again, end the process at once."""
        if self._stopped:
            leave(self._terminal)
        self._stopped = True
        self._terminal.whisper("\nstopping at the next step; what is done is kept\n")

    def _report(self, report: "Report") -> None:
        text = _WORDS[report.phase]
        if report.phase in ("write", "train"):
            text += f" {report.done} of {report.total}"
            if report.left_s is not None:
                text += f", {spelled_time(report.left_s)} left"
        if report.detail:
            text += f": {report.detail}"
        if report.phase == "measure" and report.detail:
            self._terminal.say(f"step {report.done} of {report.total}: {report.detail}")
        elif self._terminal.told:
            self._terminal.show(text)
        elif time.monotonic() - self._told_at > _EVERY_S or report.done == report.total:
            self._told_at = time.monotonic()
            self._terminal.say(text)


def show_plan(terminal: Terminal, prepared: "Prepared", plan: "Plan") -> None:
    """Say what will be trained, on what, and what that takes."""
    from dflash_mlx.hub.download import spelled_bytes

    draft, schedule, needs = prepared.beginning.draft.model.config, plan.schedule, plan.needs
    kind = "DFlash 2 draft" if draft.selector else "draft"
    terminal.say(f"{kind} for {prepared.opened.name}", bold=True)
    begun = f", begun from {prepared.config.init}" if prepared.config.init else ""
    terminal.say(
        f"  draft    {plan.parameters / 1e6:.1f}M parameters, {plan.trained / 1e6:.1f}M of them "
        f"trained: {draft.num_hidden_layers} layers, block {draft.block_size}, taps "
        f"{', '.join(map(str, draft.target_layer_ids))}, mask token {draft.mask_token_id}{begun}"
    )
    written = ", written by the target" if prepared.data.writes else ""
    terminal.say(
        f"  data     {prepared.data.source}: {schedule.n_samples} samples, about "
        f"{plan.n_answer_tokens} answer tokens{written}"
    )
    if prepared.data.dropped:
        terminal.say(f"           {prepared.data.dropped}")
    recipe = plan.recipe
    terminal.say(
        f"  recipe   {recipe.steps} steps of {recipe.sequences} samples with up to "
        f"{recipe.anchors} blocks each ({plan.passes:.1f} passes), peak rate "
        f"{recipe.learning_rate:g}, seed {recipe.seed}"
    )
    can = f" of {spelled_bytes(plan.usable_bytes)}" if plan.usable_bytes else ""
    terminal.say(
        f"  memory   about {spelled_bytes(needs.total)}{can}: target "
        f"{spelled_bytes(needs.target)}, weights {spelled_bytes(needs.weights)}, gradients "
        f"{spelled_bytes(needs.gradients)}, moments {spelled_bytes(needs.moments)}, activations "
        f"{spelled_bytes(needs.activations)}; the probe took {spelled_bytes(plan.peak_bytes)}"
    )
    if plan.gave_way:
        terminal.say(f"           memory is short: {'; '.join(plan.gave_way)}")
    terminal.say(
        f"  disk     {spelled_bytes(plan.cache_bytes)} for features of "
        f"{spelled_bytes(plan.feature_bytes)}, of {spelled_bytes(plan.free_bytes)} free"
    )
    terminal.say(
        f"  time     {spelled_time(schedule.total_s)}: writing {spelled_time(schedule.write_s)}, "
        f"features {spelled_time(schedule.feature_s)}, steps {spelled_time(schedule.train_s)} "
        f"({plan.speeds.step_s:.2f} s each), measuring {spelled_time(schedule.measure_s)}"
    )
    terminal.say(f"  into     {prepared.config.out}")


def show_result(terminal: Terminal, result: "Result", target: str) -> None:
    """Say what became of a run for `target`, a name or a path, and what to do with it."""
    if not result.finished:
        terminal.say("stopped; the same command with --resume goes on where it stopped")
    if result.out is None:
        return
    found = [line["sequential"] for line in result.measured]
    if found:
        best = max(found, key=lambda found: found["tokens_per_round"])
        kinds = ", ".join(f"{kind} {value:.2f}" for kind, value in best["by_kind"].items())
        terminal.say(f"{best['tokens_per_round']:.2f} tokens a round in greedy decoding ({kinds})")
    word = "done" if result.finished else "the best draft so far"
    terminal.say(f"{word}: {result.out}", bold=True)
    terminal.say(
        f"  try it   dflash-mlx chat --model {quote(target)} --draft {quote(str(result.out))}"
    )
    terminal.say(f"  curves   {result.out / 'curves.html'}")
    if result.finished:
        terminal.say(f"  {result.run} holds its samples and last checkpoint; it may be deleted")


def spelled_time(seconds: float) -> str:
    """A time for a person, in the two largest units."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
