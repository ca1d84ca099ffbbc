"""Divides the time of a run between generation, features, steps and evaluation.

Must not know how the times are measured.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from dflash_mlx.errors import BadRequest
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.run.memory import StepMemory
from dflash_mlx.train.run.options import DEFAULT_MINUTES, TrainConfig

EPOCHS = 6
"""Epochs that a plan aims for: the paper's number (arXiv 2602.06036, appendix A.1)."""

_MAX_EPOCHS = 24
"""Four times the paper's epochs: after that a draft memorises its samples."""

_EVALUATION_SHARE = 0.1
"""Share of the time for evaluation: a choice between a finer curve and more training."""

_MIN_STEPS = 20
"""Steps of the shortest run: fewer end within the warm-up of a usual run."""

_MAX_EVALUATIONS = 10
"""Points of an evaluation curve; more only shorten each evaluation."""

_STEPS_PER_EVALUATION = 100
"""Steps between evaluations of a run with `--steps`: about 10% of the time for the embedded
target on CPU (5 s per step, a minute per evaluation of all prompts)."""

_TOLERANCE = 1.05
"""Ratio of planned to requested time that is accepted: measured times vary by several percent."""


@dataclass(frozen=True)
class StageSeconds:
    """Seconds per unit of each stage.

    `generate_s` per generated sample, `feature_s` per sample's forward through the target,
    `step_s` per step with stored features, `prompt_s` per prompt decoded in an evaluation.
    """

    generate_s: float
    feature_s: float
    step_s: float
    prompt_s: float


@dataclass(frozen=True)
class CorpusSize:
    """Number of samples so far, whether it can grow, and its upper bound (None: unbounded)."""

    n_samples: int
    grows: bool
    max_samples: int | None = None


@dataclass(frozen=True)
class EvaluationPlan:
    """Number of evaluations, and prompts per kind in each."""

    times: int
    per_kind: int

    def prompts(self, kinds: "PromptKinds") -> int:
        """Return the number of prompts decoded in all evaluations."""
        return self.times * self.per_kind * kinds.count


@dataclass(frozen=True)
class PromptKinds:
    """Number of kinds of held-out prompts, and of prompts per kind."""

    count: int
    per_kind: int


@dataclass(frozen=True)
class Schedule:
    """Samples, steps and evaluations of a run, and the seconds of each stage."""

    n_samples: int
    steps: int
    evaluations: EvaluationPlan
    generate_s: float
    feature_s: float
    train_s: float
    evaluate_s: float

    @property
    def total_s(self) -> float:
        """Seconds of all stages."""
        return self.generate_s + self.feature_s + self.train_s + self.evaluate_s


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a run. Sizes are in bytes.

    `parameters` counts the whole draft and `trained` the parameters with a gradient.
    `feature_bytes` would store all features and `cache_bytes` are used. `peak_bytes` is the
    measured peak memory of a step. `reductions` lists what was reduced to fit into memory.
    """

    parameters: int
    trained: int
    recipe: Recipe
    schedule: Schedule
    stages: StageSeconds
    memory: StepMemory
    n_answer_tokens: int
    feature_bytes: int
    cache_bytes: int
    usable_bytes: int | None
    free_bytes: int
    peak_bytes: int
    reductions: tuple[str, ...]

    @property
    def epochs(self) -> float:
        """Number of times that each sample is used."""
        n_used = self.recipe.steps * self.recipe.samples_per_step
        return n_used / max(1, self.schedule.n_samples)

    def table(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "epochs": self.epochs, "total_s": self.schedule.total_s}


def make_schedule(
    config: TrainConfig,
    seconds: float | None,
    corpus: CorpusSize,
    stages: StageSeconds,
    samples_per_step: int,
    kinds: PromptKinds,
) -> Schedule:
    """Return the schedule for `seconds`, or for the steps in `config`; at least 20 steps.

    `seconds` None stands for the minutes in `config`. With steps, `stages` only determines the
    estimated times: samples, steps and evaluations follow from the options.
    """
    if config.steps is not None:
        return _by_steps(config.steps, config, corpus, stages, samples_per_step, kinds)
    seconds = 60 * (config.minutes or DEFAULT_MINUTES) if seconds is None else seconds
    evaluations = _evaluations(_EVALUATION_SHARE * seconds, stages, kinds)
    evaluate_s = evaluations.prompts(kinds) * stages.prompt_s
    left = seconds - evaluate_s
    n_samples = _n_samples(config, corpus, stages, samples_per_step, left)
    generate_s = (n_samples - corpus.n_samples) * stages.generate_s if corpus.grows else 0.0
    feature_s = n_samples * stages.feature_s
    steps = int((left - generate_s - feature_s) / stages.step_s)
    max_steps = math.ceil(n_samples * _MAX_EPOCHS / samples_per_step)
    steps = max(_MIN_STEPS, min(max_steps, steps))
    train_s = steps * stages.step_s
    return Schedule(n_samples, steps, evaluations, generate_s, feature_s, train_s, evaluate_s)


def check_minutes(config: TrainConfig, schedule: Schedule) -> None:
    """Refuse `--minutes` that are too few for the smallest schedule.

    Raises:
        BadRequest: names the minutes that are needed.
    """
    if config.minutes is not None and schedule.total_s > 60 * config.minutes * _TOLERANCE:
        raise BadRequest(
            f"--minutes {config.minutes:g} is too short: {schedule.steps} steps with "
            f"{schedule.n_samples} samples take about {math.ceil(schedule.total_s / 60)} minutes "
            "on this machine; give more minutes, or fewer --samples"
        )


def samples_for_steps(steps: int, samples_per_step: int) -> int:
    """Return the number of samples that `steps` steps use for `EPOCHS` epochs."""
    return max(2, math.ceil(steps * samples_per_step / EPOCHS))


def _by_steps(
    steps: int,
    config: TrainConfig,
    corpus: CorpusSize,
    stages: StageSeconds,
    samples_per_step: int,
    kinds: PromptKinds,
) -> Schedule:
    n_samples = corpus.n_samples
    if corpus.grows:
        wanted = config.samples or samples_for_steps(steps, samples_per_step)
        n_samples = max(n_samples, min(wanted, corpus.max_samples or wanted))
    train_s = steps * stages.step_s
    times = max(1, min(_MAX_EVALUATIONS, steps // _STEPS_PER_EVALUATION))
    per_kind = kinds.per_kind if steps >= _STEPS_PER_EVALUATION else 1
    evaluations = EvaluationPlan(times, per_kind)
    return Schedule(
        n_samples,
        steps,
        evaluations,
        (n_samples - corpus.n_samples) * stages.generate_s if corpus.grows else 0.0,
        min(n_samples, steps * samples_per_step) * stages.feature_s,
        train_s,
        evaluations.prompts(kinds) * stages.prompt_s,
    )


def _n_samples(
    config: TrainConfig,
    corpus: CorpusSize,
    stages: StageSeconds,
    samples_per_step: int,
    seconds: float,
) -> int:
    """Return the number of samples that leaves time for `EPOCHS` epochs over them."""
    if not corpus.grows:
        return corpus.n_samples
    if config.samples is not None:
        wanted = config.samples
    else:
        train_s = stages.feature_s + EPOCHS * stages.step_s / samples_per_step
        saved_s = corpus.n_samples * stages.generate_s  # these samples exist already
        wanted = int((seconds + saved_s) / (stages.generate_s + train_s))
    return max(2, corpus.n_samples, min(wanted, corpus.max_samples or wanted))


def _evaluations(seconds: float, stages: StageSeconds, kinds: PromptKinds) -> EvaluationPlan:
    """Return the evaluations that fit into `seconds`: three full ones first, then more of them."""
    once_s = kinds.count * stages.prompt_s  # with one prompt of each kind
    per_kind = max(1, min(kinds.per_kind, int(seconds / (3 * once_s))))
    times = int(seconds / (per_kind * once_s))
    return EvaluationPlan(max(1, min(_MAX_EVALUATIONS, times)), per_kind)
