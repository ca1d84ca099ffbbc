"""A run from its first plan to its result: write, train, measure, publish.

It may be stopped at any point and gone on with later. Everything that decides what the result
will be is written into the run's folder when it is decided, and read from there afterwards.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dflash_mlx.train.between_steps import BetweenSteps
from dflash_mlx.train.facts import facts_of
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.measuring import Measuring, interval
from dflash_mlx.train.options import MINUTES
from dflash_mlx.train.outcome import publish
from dflash_mlx.train.plan import Evaluations, Plan
from dflash_mlx.train.planning import fill_vocabulary, make_plan
from dflash_mlx.train.preparing import Prepared
from dflash_mlx.train.probe import Clock
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.reports import Report, Watcher
from dflash_mlx.train.run_folder import RunFolder
from dflash_mlx.train.samples import Samples, split
from dflash_mlx.train.selfwritten import grow
from dflash_mlx.train.shards import Shard, Shards
from dflash_mlx.train.trainer import train

_LEAST_SHARE = 0.25
"""Share of the time that training gets though writing took longer than planned."""


@dataclass(frozen=True)
class Result:
    """What became of a run. `out` is None where it was stopped before anything was measured."""

    out: Path | None
    run: Path
    finished: bool
    facts: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The lines of the history that measure the draft."""
        return [line for line in self.history if "sequential" in line]

    def table(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        places = {"out": str(self.out) if self.out else None, "run": str(self.run)}
        return {**places, "finished": self.finished, **self.facts, "measured": self.measured}


class Job:
    """One run in its folder, which the caller keeps locked."""

    def __init__(
        self, prepared: Prepared, folder: RunFolder, watcher: Watcher, clock: Clock
    ) -> None:
        self.prepared = prepared
        self.folder = folder
        self.watcher = watcher
        self.clock = clock
        self.shards = Shards(folder.data)
        self._began = clock()
        self._spent_s = float(folder.facts().get("spent_s", 0.0))

    def adopt(self, plan: Plan) -> None:
        """Hold to a first plan: its samples, or where these are at hand its steps."""
        self.folder.know(n_samples=plan.schedule.n_samples, spent_s=self._seconds())
        if not self.prepared.data.writes:
            self._decide(plan)

    def run(self) -> Result:
        """Do what is left to do, as far as the watcher lets it.

        Raises:
            DFlashError: the loss stays NaN, or the disk is full; the last checkpoint is good.
        """
        samples = self._corpus(int(self.folder.facts()["n_samples"]))
        if samples is None:
            return Result(None, self.folder.path, finished=False)
        return self._train(samples)

    def _corpus(self, n_samples: int) -> Samples | None:
        """Return the samples of the run, written as far as they are not; None when stopped."""
        writer = self.prepared.writer
        if writer is None:
            return self.prepared.samples(self.shards)
        here, began = len(self.prepared.samples(self.shards)), self.clock()

        def keep_on(n_tokens: int) -> bool:
            return not self.watcher.stopped()

        def told(count: int, shard: Shard) -> None:
            self.folder.know(spent_s=self._seconds())
            each_s = (self.clock() - began) / max(1, count - here)
            left_s = max(0, n_samples - count) * each_s
            done = min(count, n_samples)
            self.watcher.on_report(Report("write", done, n_samples, left_s=left_s))

        return grow(writer, self.shards, n_samples, keep_on, told)

    def _settle(self, samples: Samples) -> tuple[Recipe, Evaluations]:
        """Return the recipe and the measurements, decided once the corpus is whole."""
        if "recipe" not in self.folder.facts():
            self.watcher.on_report(Report("probe", 0, 1))
            asked = 60 * (self.prepared.config.minutes or MINUTES)
            seconds = max(asked - self._seconds(), _LEAST_SHARE * asked)
            place = self.folder.path
            self._decide(make_plan(self.prepared, samples, None, seconds, place, self.clock))
        known = self.folder.facts()
        return Recipe(**known["recipe"]), Evaluations(**known["evaluations"])

    def _decide(self, plan: Plan) -> None:
        self.folder.know(
            recipe=asdict(plan.recipe),
            evaluations=asdict(plan.schedule.evaluations),
            cache_bytes=plan.cache_bytes,
            plan=asdict(plan),
        )

    def _train(self, samples: Samples) -> Result:
        recipe, evaluations = self._settle(samples)
        trained, held = split(samples)
        fill_vocabulary(self.prepared, trained)
        features = self._features(recipe)
        every = interval(recipe.steps, evaluations.times)
        measuring = Measuring(self.prepared, features, held, every, evaluations.per_kind)
        between = BetweenSteps(self.folder, measuring, recipe, self.watcher, self.clock)
        between.catch_up()
        if not between.stopped:
            train(
                self.prepared.beginning.draft,
                trained,
                features,
                recipe,
                self.folder.checkpoint,
                between.watch,
                self.prepared.opened.dtype,
            )
        facts = facts_of(self.prepared, recipe, trained, held, self.shards)
        return self._publish(facts, finished=not between.stopped)

    def _features(self, recipe: Recipe) -> FeatureStore:
        opened = self.prepared.opened
        return FeatureStore(
            opened.loaded.target,
            self.prepared.beginning.draft.target_layer_ids,
            recipe.teacher_ids,
            self.folder.features,
            int(self.folder.facts()["cache_bytes"]),
            opened.identity,
        )

    def _publish(self, facts: dict[str, Any], finished: bool) -> Result:
        """Write the best weights there are as the result."""
        weights, history = self.folder.best_weights(), self.folder.history()
        step = max((int(line["step"]) for line in history), default=0)
        facts = {**facts, "finished": finished, "progress": {"step": step}}
        self.folder.know(spent_s=self._seconds(), finished=finished)
        if weights is None:
            return Result(None, self.folder.path, finished, facts, history)
        self.watcher.on_report(Report("publish", 0, 1))
        out = self.prepared.config.out_folder
        publish(out, self.prepared.beginning.config, weights, facts, history)
        if finished:
            self.folder.forget_features()
        return Result(out, self.folder.path, finished, facts, history)

    def _seconds(self) -> float:
        """Return the seconds that this run has taken, those before a stop included."""
        return self._spent_s + self.clock() - self._began
