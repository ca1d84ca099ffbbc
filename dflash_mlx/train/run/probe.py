"""Measures the seconds of each stage of a run on a small part of the real work.

Leaves the draft unchanged. Must not know how the time of a run is divided.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.models.pair import Pair
from dflash_mlx.train.data.corpus import CorpusWriter, Shard
from dflash_mlx.train.data.samples import Samples
from dflash_mlx.train.loop.evaluate import HeldOutPrompt, evaluate_decoding
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.loop.trainer import AfterStep, OnStep, StepReport, train
from dflash_mlx.train.run.schedule import StageSeconds
from dflash_mlx.train.run.setup import InitialDraft, TrainingTarget

Clock = Callable[[], float]
"""Returns seconds; handed in, so that tests do not depend on the machine."""

PROBE_S = 120.0
"""Upper bound of all measurements together: short next to the default run of an hour."""

_MAX_REPEATS = 4
"""Samples forwarded through the target, and steps with each head, at most: their median is
stable to a few percent."""

_UNBOUNDED_STEPS = 100_000
"""Steps of a probe's recipe, so that all measured steps use the same head."""

_MIN_STEP_SHARE = 0.1
"""Lower bound of the draft's share of a step: the target's share is subtracted with noise."""

_MEAN_LENGTH = 1 / 3
"""Assumed mean length of a sample relative to the limit, if no sample was finished in time."""


def median_seconds(
    work: Callable[[], object], clock: Clock, budget_s: float, repeats: int = 5
) -> float:
    """Return the median seconds of `work`, called up to `repeats` + 1 times within `budget_s`.

    The first call compiles and allocates; it counts only if there is no other.
    """
    start, took = clock(), list[float]()
    while len(took) < repeats + 1:
        began = clock()
        work()
        took.append(clock() - began)
        if clock() - start + took[-1] > budget_s:
            break
    return median(took[1:] if len(took) > 1 else took)


@dataclass(frozen=True)
class GenerationProbe:
    """The shard that was generated, None if time ran out, and the seconds per sample."""

    shard: Shard | None
    seconds: float


def probe_generation(
    writer: CorpusWriter, index: int, clock: Clock, budget_s: float = PROBE_S / 2
) -> GenerationProbe:
    """Generate shard `index` of the run within `budget_s`."""
    start, counts = clock(), [0]

    def should_continue(n_tokens: int) -> bool:
        if n_tokens < counts[-1]:  # the count starts again for the answers
            counts.append(0)
        counts[-1] = n_tokens
        return clock() - start < budget_s

    shard = writer.make_shard(index, should_continue)
    took = clock() - start
    if shard is not None:
        return GenerationProbe(shard, took / max(1, len(shard.samples)))
    config = writer.config
    longest = config.limits.max_tokens + (config.turn_tokens if writer.prompts is None else 0)
    return GenerationProbe(None, took * _MEAN_LENGTH * longest / max(1, sum(counts)))


@dataclass(frozen=True)
class ProbeInputs:
    """What a probe of training works on: `max_tokens` tokens are decoded after `prompt`."""

    target: TrainingTarget
    initial: InitialDraft
    samples: Samples
    recipe: Recipe
    prompt: HeldOutPrompt
    max_tokens: int

    def features(self, folder: Path, max_bytes: int) -> FeatureStore:
        """Return a feature store for this run's draft and target."""
        return FeatureStore(
            self.target.loaded.target,
            self.initial.draft.target_layer_ids,
            self.recipe.teacher_top_k,
            folder,
            max_bytes,
            self.target.identity,
        )

    def decode(self) -> None:
        """Decode one prompt as an evaluation does."""
        loaded, draft = self.target.loaded, self.initial.draft
        pair = Pair(loaded.target, draft)
        eos_token_ids = loaded.tokenizer.eos_token_ids
        evaluate_decoding(pair, [self.prompt], eos_token_ids, self.max_tokens, draft.block_size)


@dataclass(frozen=True)
class TrainingProbe:
    """Seconds of each stage, and the peak memory of a step in bytes."""

    stages: StageSeconds
    peak_bytes: int


def probe_training(
    inputs: ProbeInputs, generate_s: float, clock: Clock, budget_s: float = PROBE_S / 2
) -> TrainingProbe:
    """Decode one prompt, forward a few samples through the target, and take a few steps."""
    model, part_s = inputs.initial.draft.model, budget_s / 4
    before = tree_flatten(model.parameters())
    prompt_s = median_seconds(inputs.decode, clock, part_s, repeats=1)
    mx.clear_cache()
    mx.reset_peak_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        features = inputs.features(folder / "features", 0)
        feature_s = _seconds_per_sample(features, inputs.samples, clock, part_s)
        recipe = inputs.recipe
        share = recipe.reduced_head_share

        def step_s(reduced_head_share: float) -> float:
            taken = replace(recipe, steps=_UNBOUNDED_STEPS, reduced_head_share=reduced_head_share)
            return step_seconds(
                lambda on_step: train(
                    inputs.initial.draft,
                    inputs.samples,
                    features,
                    taken,
                    folder / f"{reduced_head_share}.safetensors",
                    on_step,
                    inputs.target.dtype,
                ),
                clock,
                part_s,
            )

        whole_s = share * step_s(1.0) + (1 - share) * step_s(0.0)
    peak = mx.get_peak_memory()
    model.update(tree_unflatten(before))
    mx.clear_cache()
    # no features were stored, so each step includes the target's forward over its samples
    draft_s = max(whole_s - recipe.samples_per_step * feature_s, _MIN_STEP_SHARE * whole_s)
    return TrainingProbe(StageSeconds(generate_s, feature_s, draft_s, prompt_s), peak)


def step_seconds(run: Callable[[OnStep], object], clock: Clock, budget_s: float) -> float:
    """Return the median seconds of a step of `run`, without the first if there are more."""
    marks = [clock()]

    def on_step(report: StepReport) -> AfterStep:
        marks.append(clock())
        enough = len(marks) > _MAX_REPEATS + 1 or marks[-1] - marks[0] > budget_s
        return "stop" if enough else "continue"

    run(on_step)
    took = [end - start for start, end in pairwise(marks)]
    return median(took[1:] or took)


def _seconds_per_sample(
    features: FeatureStore, samples: Samples, clock: Clock, budget_s: float
) -> float:
    """Return the mean seconds of a sample's forward through the target."""
    start, took = clock(), []
    for sample in samples[:: max(1, len(samples) // _MAX_REPEATS)][:_MAX_REPEATS]:
        began = clock()
        features(sample)
        took.append(clock() - began)
        if clock() - start > budget_s:
            break
    return fmean(took)
