"""Logs, evaluates, saves and stops a run between its steps, and reports its progress.

Must not know how progress is displayed.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.models.pair import Pair
from dflash_mlx.system.atomic import replace_file
from dflash_mlx.train.data.samples import Samples
from dflash_mlx.train.loop.checkpoint import load_checkpoint
from dflash_mlx.train.loop.evaluate import block_predictor, evaluate_anchors, evaluate_decoding
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.loop.trainer import AfterStep, StepReport
from dflash_mlx.train.run.planning import EVALUATED_TOKENS
from dflash_mlx.train.run.probe import Clock
from dflash_mlx.train.run.report import curves_page
from dflash_mlx.train.run.run_folder import BestWeights, RunFolder
from dflash_mlx.train.run.setup import TrainingSetup

_SAVE_EVERY_S = 600.0
"""Seconds between checkpoints: what a crash can cost."""

_REPORTED_POSITIONS = 4
"""Positions whose acceptance a progress line shows; later ones are rarely reached."""

_ANCHORS_PER_SAMPLE = 32
"""Anchors per held-out answer."""

_MAX_HELD_OUT = 64
"""Held-out samples per anchor evaluation: 2,048 anchors, a standard error of about 0.02."""

TrainingPhase = Literal["probe", "generate", "train", "evaluate", "publish"]


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a phase; `detail` is text, `left_s` the estimated seconds to its end."""

    phase: TrainingPhase
    done: int
    total: int
    detail: str = ""
    left_s: float | None = None


@dataclass(frozen=True)
class TrainingHooks:
    """Callbacks of a run: it reports to `on_progress`, and stops after the step if `stopped()`."""

    on_progress: Callable[[TrainingProgress], None] = lambda progress: None
    stopped: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the draft every `interval` steps: `per_kind` prompts of each kind, and anchors."""

    setup: TrainingSetup
    features: FeatureStore
    held_out: Samples
    interval: int
    per_kind: int

    def is_due(self, step: int, steps: int) -> bool:
        """Return whether to evaluate after `step`; always after the last step."""
        return step == steps or step % self.interval == 0

    def evaluate(self, should_continue: Callable[[], bool]) -> dict[str, Any] | None:
        """Return both evaluations as plain values; None if `should_continue` returned False."""
        target, draft = self.setup.target, self.setup.initial.draft
        decoding = evaluate_decoding(
            Pair(target.loaded.target, draft),
            self.setup.prompts_by_kind(self.per_kind),
            target.loaded.tokenizer.eos_token_ids,
            EVALUATED_TOKENS,
            draft.block_size,
            should_continue,
        )
        if decoding is None:
            return None
        anchors = evaluate_anchors(
            block_predictor(draft, self.features, target.dtype),
            self.held_out[:_MAX_HELD_OUT],
            draft.block_size,
            _ANCHORS_PER_SAMPLE,
            self.setup.config.seed,
        )
        return {"decoding": asdict(decoding), "anchors": asdict(anchors)}


def evaluation_interval(steps: int, times: int) -> int:
    """Return the number of steps between evaluations, so that there are at most `times`."""
    return max(1, math.ceil(steps / times))


class RunMonitor:
    """Follows the training of one run; `stopped` is True once it was asked to stop."""

    def __init__(
        self,
        folder: RunFolder,
        evaluator: Evaluator,
        recipe: Recipe,
        hooks: TrainingHooks,
        clock: Clock,
    ) -> None:
        self.folder = folder
        self.evaluator = evaluator
        self.recipe = recipe
        self.hooks = hooks
        self.clock = clock
        self.stopped = False
        self._saved_at = self._started_at = clock()
        self._first_step: int | None = None
        self._best = 0.0

    def catch_up(self) -> None:
        """Bring history and evaluations to the step of the checkpoint.

        An evaluation that a stop interrupted is repeated with the checkpoint's weights.
        """
        checkpoint = load_checkpoint(self.folder.checkpoint)
        step = checkpoint.counts.step if checkpoint else 0
        self.folder.rewind(step)
        evaluated = {line["step"] for line in self._evaluations()}
        best = self._load_best()
        missing = step not in evaluated or best is None
        if checkpoint and self.evaluator.is_due(step, self.recipe.steps) and missing:
            dtype = self.evaluator.setup.target.dtype
            draft = self.evaluator.setup.initial.draft
            draft.model.update(tree_map(lambda array: array.astype(dtype), checkpoint.weights))
            self.stopped = not self._evaluate(step, checkpoint.counts.tokens)
        self._saved_at = self._started_at = self.clock()

    def _load_best(self) -> BestWeights | None:
        """Return the best weights so far, and remember their evaluation.

        Raises:
            BadCheckpoint: the weights are not those of this run's draft.
        """
        best = self.folder.best()
        if best is None:
            return None
        shapes = {name: array.shape for name, array in self._parameters().items()}
        if {name: array.shape for name, array in best.arrays.items()} != shapes:
            raise BadCheckpoint(
                f"{self.folder.best_file} contains the weights of another draft; delete it, and "
                "--resume evaluates the checkpoint again"
            )
        self._best = best.tokens_per_round
        return best

    def _parameters(self) -> dict[str, mx.array]:
        return dict(tree_flatten(self.evaluator.setup.initial.draft.model.parameters()))

    def on_step(self, report: StepReport) -> AfterStep:
        """Log a step; evaluate, save or stop if it is time to."""
        step = report.counts.step
        self.folder.log(_history_line(report))
        self._report(report)
        due = self.evaluator.is_due(step, self.recipe.steps)
        if due and not self._evaluate(step, report.counts.tokens):
            self.stopped = True
        self.stopped = self.stopped or self.hooks.stopped()
        if self.stopped:
            return "stop"
        if due or self.clock() - self._saved_at > _SAVE_EVERY_S:
            self._saved_at = self.clock()
            return "save"
        return "continue"

    def _evaluate(self, step: int, tokens: int) -> bool:
        """Evaluate the draft and store it if it is the best; return False if stopped meanwhile."""
        self.hooks.on_progress(TrainingProgress("evaluate", step, self.recipe.steps))
        found = self.evaluator.evaluate(lambda: not self.hooks.stopped())
        if found is None:
            return False
        reached = found["decoding"]["tokens_per_round"]
        if reached > self._best:
            self._best = reached
            self.folder.save_best(self._parameters(), step, reached)
        self.folder.log({"step": step, "tokens": tokens, **found})
        page = curves_page(self.folder.path.name, "training in progress", self.folder.history())
        replace_file(
            self.folder.path / "curves.html",
            lambda file: file.write_text(page, encoding="utf-8"),
            "free disk space and continue with --resume",
        )
        detail = (
            f"{reached:.2f} tokens per round in decoding, "
            f"{found['anchors']['tokens_per_round']:.2f} at anchors"
        )
        self.hooks.on_progress(TrainingProgress("evaluate", step, self.recipe.steps, detail))
        return True

    def _evaluations(self) -> list[dict[str, Any]]:
        return [line for line in self.folder.history() if "decoding" in line]

    def _report(self, report: StepReport) -> None:
        step = report.counts.step
        if self._first_step is None:
            self._first_step = step - 1
        step_s = (self.clock() - self._started_at) / (step - self._first_step)
        positions = " ".join(f"{share:.2f}" for share in report.accepted[:_REPORTED_POSITIONS])
        skipped = f", {report.counts.skipped} samples skipped" if report.counts.skipped else ""
        detail = (
            f"loss {report.loss:.3f}, accepted by position {positions}, "
            f"{report.tokens_per_round:.2f} tokens per round at anchors{skipped}"
        )
        left_s = step_s * (report.steps - step)
        self.hooks.on_progress(TrainingProgress("train", step, report.steps, detail, left_s))


def _history_line(report: StepReport) -> dict[str, Any]:
    return {
        "step": report.counts.step,
        "tokens": report.counts.tokens,
        "skipped": report.counts.skipped,
        "loss": report.loss,
        "accepted": list(report.accepted),
        "tokens_per_round": report.tokens_per_round,
        "learning_rate": report.learning_rate,
        "gradient_norm": report.gradient_norm,
    }
