"""The probe of a run: a little of each of its parts, done for real and timed.

It leaves the draft as it was. A shard that it writes is the run's next, so it can be kept.
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
from dflash_mlx.train.evaluate import Prompt, sequentially
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.opening import Beginning, Opened
from dflash_mlx.train.probe import PROBE_S, Clock, Speeds, timed
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.samples import Samples
from dflash_mlx.train.selfwritten import Writer
from dflash_mlx.train.shards import Shard
from dflash_mlx.train.trainer import Progress, Watch, Word, train

_TRIED = 4
"""Samples passed through the target, and steps taken with each head, at most."""

_STEPS = 100_000
"""Steps that a trial's recipe names, so that those it takes are all of one kind."""

_LEAST = 0.1
"""Share of a step that is not the target's, at the least: both are measured with noise."""

_GUESSED = 1 / 3
"""Length of a mean sample in that of the longest, where none was finished in time to tell."""


@dataclass(frozen=True)
class Written:
    """What a trial of writing gave: the shard, None where time ran out, and seconds a sample."""

    shard: Shard | None
    seconds: float


def try_writing(writer: Writer, index: int, clock: Clock, budget_s: float = PROBE_S / 2) -> Written:
    """Write shard `index` of the run, as far as `budget_s` goes."""
    begun, counts = clock(), [0]

    def keep_on(so_far: int) -> bool:
        if so_far < counts[-1]:  # answers are counted anew behind the questions
            counts.append(0)
        counts[-1] = so_far
        return clock() - begun < budget_s

    shard = writer.shard(index, keep_on)
    took = clock() - begun
    if shard is not None:
        return Written(shard, took / max(1, len(shard.samples)))
    writing = writer.writing
    longest = writing.pace.n_tokens + (writing.turn_tokens if writer.questions is None else 0)
    return Written(None, took * _GUESSED * longest / max(1, sum(counts)))


@dataclass(frozen=True)
class Trial:
    """What a probe of training works on: `n_tokens` are decoded behind `prompt`."""

    opened: Opened
    beginning: Beginning
    samples: Samples
    recipe: Recipe
    prompt: Prompt
    n_tokens: int

    def features(self, folder: Path, max_bytes: int) -> FeatureStore:
        """Return a store of features for this run's draft and target."""
        return FeatureStore(
            self.opened.loaded.target,
            self.beginning.draft.target_layer_ids,
            self.recipe.teacher_ids,
            folder,
            max_bytes,
            self.opened.identity,
        )

    def decode(self) -> None:
        """Measure with one prompt, as the run will with many."""
        loaded, draft = self.opened.loaded, self.beginning.draft
        pair = Pair(loaded.target, draft)
        ends = loaded.tokenizer.eos_token_ids
        sequentially(pair, [self.prompt], ends, self.n_tokens, draft.block_size)


@dataclass(frozen=True)
class Tried:
    """Measured speeds, and the most memory that a step took in bytes."""

    speeds: Speeds
    peak_bytes: int


def try_training(
    trial: Trial, write_s: float, clock: Clock, budget_s: float = PROBE_S / 2
) -> Tried:
    """Decode one prompt, pass a few samples through the target, take a few steps."""
    model, part_s = trial.beginning.draft.model, budget_s / 4
    before = tree_flatten(model.parameters())
    prompt_s = timed(trial.decode, clock, part_s, most=1)
    mx.clear_cache()
    mx.reset_peak_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        features = trial.features(folder / "features", 0)
        feature_s = _per_sample(features, trial.samples, clock, part_s)
        narrow, recipe = trial.recipe.narrow, trial.recipe

        def steps(share: float) -> float:
            taken = replace(recipe, steps=_STEPS, narrow=share)
            return step_seconds(
                lambda watch: train(
                    trial.beginning.draft,
                    trial.samples,
                    features,
                    taken,
                    folder / f"{share}.safetensors",
                    watch,
                    trial.opened.dtype,
                ),
                clock,
                part_s,
            )

        whole_s = narrow * steps(1.0) + (1 - narrow) * steps(0.0)
    peak = mx.get_peak_memory()
    model.update(tree_unflatten(before))
    mx.clear_cache()
    # no features were kept, so each step has its samples' passes through the target in it
    step_s = max(whole_s - recipe.sequences * feature_s, _LEAST * whole_s)
    return Tried(Speeds(write_s, feature_s, step_s, prompt_s), peak)


def step_seconds(run: Callable[[Watch], object], clock: Clock, budget_s: float) -> float:
    """Return the median seconds of a step of `run`, the first one left out if there are more."""
    marks = [clock()]

    def watch(progress: Progress) -> Word:
        marks.append(clock())
        over = len(marks) > _TRIED + 1 or marks[-1] - marks[0] > budget_s
        return "stop" if over else "on"

    run(watch)
    took = [end - start for start, end in pairwise(marks)]
    return median(took[1:] or took)


def _per_sample(features: FeatureStore, samples: Samples, clock: Clock, budget_s: float) -> float:
    """Return the mean seconds of a sample's pass through the target, over a few of them."""
    begun, took = clock(), []
    for sample in samples[:: max(1, len(samples) // _TRIED)][:_TRIED]:
        start = clock()
        features(sample)
        took.append(clock() - start)
        if clock() - begun > budget_s:
            break
    return fmean(took)
