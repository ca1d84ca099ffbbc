"""A run from its plan to its result: generate, train, evaluate, publish.

It can be stopped at any point and resumed: every decision is stored in the run's folder. Must
not know the command line.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dflash_mlx.train.data.corpus import Shard, ShardFolder, write_corpus
from dflash_mlx.train.data.samples import Samples, split_held_out
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.loop.trainer import train
from dflash_mlx.train.run.monitor import (
    Evaluator,
    RunMonitor,
    TrainingHooks,
    TrainingProgress,
    evaluation_interval,
)
from dflash_mlx.train.run.options import DEFAULT_MINUTES
from dflash_mlx.train.run.planning import fill_vocabulary, make_plan
from dflash_mlx.train.run.probe import Clock
from dflash_mlx.train.run.result import publish, run_facts
from dflash_mlx.train.run.run_folder import RunFolder
from dflash_mlx.train.run.schedule import EvaluationPlan, TrainingPlan
from dflash_mlx.train.run.setup import TrainingSetup

_MIN_TRAINING_SHARE = 0.25
"""Share of the requested time for training, if generation took longer than planned: a quarter
still trains for several epochs."""


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run. `out` is None if it was stopped before the first evaluation."""

    out: Path | None
    run: Path
    finished: bool
    facts: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations in the history."""
        return [line for line in self.history if "decoding" in line]

    def table(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        folders = {"out": str(self.out) if self.out else None, "run": str(self.run)}
        return {
            **folders,
            "finished": self.finished,
            **self.facts,
            "evaluations": self.evaluations,
        }


class TrainingJob:
    """One run in its folder, which the caller keeps locked."""

    def __init__(
        self, setup: TrainingSetup, folder: RunFolder, hooks: TrainingHooks, clock: Clock
    ) -> None:
        self.setup = setup
        self.folder = folder
        self.hooks = hooks
        self.clock = clock
        self.shards = ShardFolder(folder.data, setup.limits.vocab_size)
        self._started_at = clock()
        self._earlier_s = folder.state().spent_s

    def adopt(self, plan: TrainingPlan) -> None:
        """Store the first plan: the number of samples, and the steps if all samples exist."""
        self.folder.update_state(n_samples=plan.schedule.n_samples, spent_s=self._seconds())
        if not self.setup.data.generated:
            self._store_plan(plan)

    def run(self) -> TrainingResult:
        """Run all remaining stages, until the hooks ask to stop.

        Raises:
            DFlashError: the loss stays NaN, or the disk is full; the last checkpoint is kept.
        """
        n_samples = self.folder.state().n_samples
        assert n_samples is not None, "the run has no plan"
        samples = self._corpus(n_samples)
        if samples is None:
            return TrainingResult(None, self.folder.path, finished=False)
        return self._train(samples)

    def _corpus(self, n_samples: int) -> Samples | None:
        """Return the samples of the run, generating those that are missing; None if stopped."""
        writer = self.setup.writer
        if writer is None:
            return self.setup.samples(self.shards)
        existing, started_at = len(self.setup.samples(self.shards)), self.clock()

        def on_shard(count: int, shard: Shard) -> None:
            self.folder.update_state(spent_s=self._seconds())
            sample_s = (self.clock() - started_at) / max(1, count - existing)
            left_s = max(0, n_samples - count) * sample_s
            done = min(count, n_samples)
            self.hooks.on_progress(TrainingProgress("generate", done, n_samples, left_s=left_s))

        return write_corpus(
            writer, self.shards, n_samples, lambda _: not self.hooks.stopped(), on_shard
        )

    def _recipe(self, samples: Samples) -> tuple[Recipe, EvaluationPlan]:
        """Return the stored recipe and evaluations; plan them first if the corpus is new."""
        if self.folder.state().recipe is None:
            self.hooks.on_progress(TrainingProgress("probe", 0, 1))
            requested = 60 * (self.setup.config.minutes or DEFAULT_MINUTES)
            seconds = max(requested - self._seconds(), _MIN_TRAINING_SHARE * requested)
            disk = self.folder.path
            self._store_plan(make_plan(self.setup, samples, None, seconds, disk, self.clock))
        state = self.folder.state()
        assert state.recipe is not None and state.evaluations is not None
        return state.recipe, state.evaluations

    def _store_plan(self, plan: TrainingPlan) -> None:
        self.folder.update_state(
            recipe=plan.recipe,
            evaluations=plan.schedule.evaluations,
            cache_bytes=plan.cache_bytes,
            plan=asdict(plan),
        )

    def _train(self, samples: Samples) -> TrainingResult:
        recipe, evaluations = self._recipe(samples)
        trained, held_out = split_held_out(samples)
        fill_vocabulary(self.setup, trained)
        features = self._features(recipe)
        interval = evaluation_interval(recipe.steps, evaluations.times)
        evaluator = Evaluator(self.setup, features, held_out, interval, evaluations.per_kind)
        monitor = RunMonitor(self.folder, evaluator, recipe, self.hooks, self.clock)
        monitor.catch_up()
        if not monitor.stopped:
            train(
                self.setup.initial.draft,
                trained,
                features,
                recipe,
                self.folder.checkpoint,
                monitor.on_step,
                self.setup.target.dtype,
            )
        facts = run_facts(self.setup, recipe, trained, held_out, self.shards)
        return self._publish(facts, finished=not monitor.stopped)

    def _features(self, recipe: Recipe) -> FeatureStore:
        target = self.setup.target
        return FeatureStore(
            target.loaded.target,
            self.setup.initial.draft.target_layer_ids,
            recipe.teacher_top_k,
            self.folder.features,
            self.folder.state().cache_bytes,
            target.identity,
        )

    def _publish(self, facts: dict[str, Any], finished: bool) -> TrainingResult:
        """Write the weights with the best evaluation to the output folder."""
        best, history = self.folder.best(), self.folder.history()
        step = max((int(line["step"]) for line in history), default=0)
        facts = {**facts, "finished": finished, "progress": {"step": step}}
        self.folder.update_state(spent_s=self._seconds(), finished=finished)
        if best is None:
            return TrainingResult(None, self.folder.path, finished, facts, history)
        self.hooks.on_progress(TrainingProgress("publish", 0, 1))
        out = self.setup.config.out_folder
        publish(out, self.setup.initial.config, best.arrays, facts, history)
        if finished:
            self.folder.delete_features()
        return TrainingResult(out, self.folder.path, finished, facts, history)

    def _seconds(self) -> float:
        """Return the seconds that this run has taken, including those before it was stopped."""
        return self._earlier_s + self.clock() - self._started_at
