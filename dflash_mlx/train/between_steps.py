"""What happens between two steps: a line of history, a measurement, a checkpoint, a stop."""

from typing import Any

from mlx.utils import tree_flatten, tree_map

from dflash_mlx.train.checkpoint import load_checkpoint, replace_file
from dflash_mlx.train.curves import curves
from dflash_mlx.train.measuring import Measuring
from dflash_mlx.train.probe import Clock
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.reports import Report, Watcher
from dflash_mlx.train.run_folder import RunFolder
from dflash_mlx.train.trainer import Progress, Word

_SAVE_EVERY_S = 600.0
"""Seconds between checkpoints."""

_SHOWN = 4
"""Positions of which progress tells the acceptance."""


class BetweenSteps:
    """Watches the training of one run. `stopped` says whether it was asked to stop."""

    def __init__(
        self,
        folder: RunFolder,
        measuring: Measuring,
        recipe: Recipe,
        watcher: Watcher,
        clock: Clock,
    ) -> None:
        self.folder = folder
        self.measuring = measuring
        self.recipe = recipe
        self.watcher = watcher
        self.clock = clock
        self.stopped = False
        self._saved_at = self._began = clock()
        self._begun_behind: int | None = None

    def catch_up(self) -> None:
        """Bring history and measurements to where the checkpoint stands.

        A stop may have cut a measurement short; it is made now, with the checkpoint's weights.
        """
        checkpoint = load_checkpoint(self.folder.checkpoint)
        step = checkpoint.counts.step if checkpoint else 0
        self.folder.rewind(step)
        measured = {line["step"] for line in self._measurements()}
        if checkpoint and self.measuring.due(step, self.recipe.steps) and step not in measured:
            dtype = self.measuring.prepared.opened.dtype
            draft = self.measuring.prepared.beginning.draft
            draft.model.update(tree_map(lambda array: array.astype(dtype), checkpoint.weights))
            self.stopped = not self._measure(step, checkpoint.counts.tokens)
        self._saved_at = self._began = self.clock()

    def watch(self, progress: Progress) -> Word:
        """Log a step; measure, save and stop where it is time to."""
        step = progress.counts.step
        self.folder.log(_line(progress))
        self._tell(progress)
        due = self.measuring.due(step, self.recipe.steps)
        if due and not self._measure(step, progress.counts.tokens):
            self.stopped = True
        self.stopped = self.stopped or self.watcher.stopped()
        if self.stopped:
            return "stop"
        if due or self.clock() - self._saved_at > _SAVE_EVERY_S:
            self._saved_at = self.clock()
            return "save"
        return "on"

    def _measure(self, step: int, tokens: int) -> bool:
        """Measure the draft and keep it if it is the best; False when stopped meanwhile."""
        self.watcher.on_report(Report("measure", step, self.recipe.steps))
        found = self.measuring.measure(lambda: not self.watcher.stopped())
        if found is None:
            return False
        reached = found["sequential"]["tokens_per_round"]
        before = (line["sequential"]["tokens_per_round"] for line in self._measurements())
        if reached > max(before, default=0.0):
            model = self.measuring.prepared.beginning.draft.model
            self.folder.save_best(dict(tree_flatten(model.parameters())), step)
        self.folder.log({"step": step, "tokens": tokens, **found})
        page = curves(self.folder.path.name, "a run at work", self.folder.history())
        replace_file(
            self.folder.path / "curves.html", lambda file: file.write_text(page, encoding="utf-8")
        )
        by_anchors = found["anchors"]["tokens_per_round"]
        detail = f"{reached:.2f} tokens a round decoding, {by_anchors:.2f} by anchors"
        self.watcher.on_report(Report("measure", step, self.recipe.steps, detail))
        return True

    def _measurements(self) -> list[dict[str, Any]]:
        return [line for line in self.folder.history() if "sequential" in line]

    def _tell(self, progress: Progress) -> None:
        step = progress.counts.step
        if self._begun_behind is None:
            self._begun_behind = step - 1
        each_s = (self.clock() - self._began) / (step - self._begun_behind)
        positions = " ".join(f"{share:.2f}" for share in progress.accepted[:_SHOWN])
        skipped = f", {progress.counts.skipped} skipped" if progress.counts.skipped else ""
        detail = (
            f"loss {progress.loss:.3f}, accepted {positions}, "
            f"{progress.tokens_per_round:.2f} tokens a round by anchors{skipped}"
        )
        left_s = each_s * (progress.steps - step)
        self.watcher.on_report(Report("train", step, progress.steps, detail, left_s))


def _line(progress: Progress) -> dict[str, Any]:
    return {
        "step": progress.counts.step,
        "tokens": progress.counts.tokens,
        "skipped": progress.counts.skipped,
        "loss": progress.loss,
        "accepted": list(progress.accepted),
        "tokens_per_round": progress.tokens_per_round,
        "learning_rate": progress.learning_rate,
        "gradient": progress.gradient,
    }
