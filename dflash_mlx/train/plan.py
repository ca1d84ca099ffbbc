"""How much is written, how many steps are taken and how often a draft is measured.

Time is shared out so that everything fits into the minutes there are: each sample costs its
writing once and its passes through the draft several times.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from dflash_mlx.errors import BadRequest
from dflash_mlx.train.needs import Needs
from dflash_mlx.train.options import MINUTES, TrainConfig
from dflash_mlx.train.probe import Speeds
from dflash_mlx.train.recipe import Recipe

PASSES = 6
"""Times that each sample comes round where time allows to choose; the paper's epochs."""

_MOST_PASSES = 24
"""Beyond that a draft learns the samples by heart."""

_MEASURING = 0.1
"""Share of the time that goes into measuring the draft."""

_LEAST_STEPS = 20
_MOST_EVALUATIONS = 10

_OVER = 1.05
"""Times the minutes asked for that a plan may take: measured speeds are not that exact."""


@dataclass(frozen=True)
class Corpus:
    """Samples at hand, and whether more can be written: up to `most`, None for any number."""

    n_samples: int
    grows: bool
    most: int | None = None


@dataclass(frozen=True)
class Evaluations:
    """How often a draft is decoded with, and over how many prompts of each kind."""

    times: int
    per_kind: int

    def prompts(self, kinds: "Kinds") -> int:
        """Return the prompts decoded in all."""
        return self.times * self.per_kind * kinds.count


@dataclass(frozen=True)
class Kinds:
    """Kinds of held-out prompts, and how many there are of each."""

    count: int
    most: int


@dataclass(frozen=True)
class Schedule:
    """What fits into the time: samples and steps, and the seconds of each part."""

    n_samples: int
    steps: int
    evaluations: Evaluations
    write_s: float
    feature_s: float
    train_s: float
    measure_s: float

    @property
    def total_s(self) -> float:
        """Seconds of everything."""
        return self.write_s + self.feature_s + self.train_s + self.measure_s


@dataclass(frozen=True)
class Plan:
    """A run before it is begun. Sizes are in bytes, times in seconds.

    `parameters` are all of the draft's, of which `trained` are trained. `n_answer_tokens` is
    what the samples are expected to hold. `feature_bytes` would hold all features, of which
    `cache_bytes` are kept. `peak_bytes` is the most that the probe's steps took.
    """

    parameters: int
    trained: int
    recipe: Recipe
    schedule: Schedule
    speeds: Speeds
    needs: Needs
    n_answer_tokens: int
    feature_bytes: int
    cache_bytes: int
    usable_bytes: int | None
    free_bytes: int
    peak_bytes: int
    gave_way: tuple[str, ...]

    @property
    def passes(self) -> float:
        """Times that each sample comes round."""
        return self.recipe.steps * self.recipe.sequences / max(1, self.schedule.n_samples)

    def table(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**asdict(self), "passes": self.passes, "total_s": self.schedule.total_s}


def scheduled(
    config: TrainConfig,
    seconds: float | None,
    corpus: Corpus,
    speeds: Speeds,
    sequences: int,
    kinds: Kinds,
) -> Schedule:
    """Return what fits into `seconds`, or takes the steps that `config` names; a few at least."""
    if config.steps is not None:
        return _by_steps(config.steps, config, corpus, speeds, sequences, kinds)
    seconds = 60 * (config.minutes or MINUTES) if seconds is None else seconds
    evaluations = _evaluations(_MEASURING * seconds, speeds, kinds)
    measure_s = evaluations.prompts(kinds) * speeds.prompt_s
    left = seconds - measure_s
    n_samples = _samples(config, corpus, speeds, sequences, left)
    write_s = (n_samples - corpus.n_samples) * speeds.write_s if corpus.grows else 0.0
    feature_s = n_samples * speeds.feature_s
    steps = int((left - write_s - feature_s) / speeds.step_s)
    steps = max(_LEAST_STEPS, min(math.ceil(n_samples * _MOST_PASSES / sequences), steps))
    return Schedule(
        n_samples, steps, evaluations, write_s, feature_s, steps * speeds.step_s, measure_s
    )


def refuse_too_short(config: TrainConfig, schedule: Schedule) -> None:
    """Refuse minutes that hold too few steps to be worth taking.

    Raises:
        BadRequest: with the minutes that would do.
    """
    if config.minutes is not None and schedule.total_s > 60 * config.minutes * _OVER:
        raise BadRequest(
            f"--minutes {config.minutes:g} is too short: {schedule.steps} steps with "
            f"{schedule.n_samples} samples take about {math.ceil(schedule.total_s / 60)} here; "
            "give more minutes, or fewer --samples"
        )


def _by_steps(
    steps: int,
    config: TrainConfig,
    corpus: Corpus,
    speeds: Speeds,
    sequences: int,
    kinds: Kinds,
) -> Schedule:
    n_samples = corpus.n_samples
    if corpus.grows:
        wanted = config.samples or max(2, math.ceil(steps * sequences / PASSES))
        n_samples = max(n_samples, min(wanted, corpus.most or wanted))
    train_s = steps * speeds.step_s
    evaluations = _evaluations(_MEASURING * train_s, speeds, kinds)
    return Schedule(
        n_samples,
        steps,
        evaluations,
        (n_samples - corpus.n_samples) * speeds.write_s if corpus.grows else 0.0,
        min(n_samples, steps * sequences) * speeds.feature_s,
        train_s,
        evaluations.prompts(kinds) * speeds.prompt_s,
    )


def _samples(
    config: TrainConfig, corpus: Corpus, speeds: Speeds, sequences: int, seconds: float
) -> int:
    """Return how many samples to have: as many as leave time for `PASSES` over them."""
    if not corpus.grows:
        return corpus.n_samples
    if config.samples is not None:
        wanted = config.samples
    else:
        training = speeds.feature_s + PASSES * speeds.step_s / sequences
        here = corpus.n_samples  # written already
        wanted = int((seconds + here * speeds.write_s) / (speeds.write_s + training))
    return max(2, corpus.n_samples, min(wanted, corpus.most or wanted))


def _evaluations(seconds: float, speeds: Speeds, kinds: Kinds) -> Evaluations:
    """Return how often to measure in `seconds`: a few times with many prompts, then more often."""
    once_s = kinds.count * speeds.prompt_s  # with one prompt of each kind
    per_kind = max(1, min(kinds.most, int(seconds / (3 * once_s))))
    times = int(seconds / (per_kind * once_s))
    return Evaluations(max(1, min(_MOST_EVALUATIONS, times)), per_kind)
