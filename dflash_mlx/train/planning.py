"""From measured speeds and bounded memory to a plan: before the work, and again before training.

The first plan rests on one shard of samples. When the corpus is whole the speeds are measured
again, since the head's cost depends on the tokens that occur, and the steps are those that fit
into the time that is left.
"""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from mlx.utils import tree_flatten

from dflash_mlx.hub.download import free_bytes
from dflash_mlx.train.beginning import reduce_vocabulary
from dflash_mlx.train.needs import Scale, fitting
from dflash_mlx.train.plan import Corpus, Kinds, Plan, refuse_too_short, scheduled
from dflash_mlx.train.preparing import Prepared
from dflash_mlx.train.probe import Clock
from dflash_mlx.train.recipe import Recipe, Weighting, decay_for
from dflash_mlx.train.samples import Limits, Sample, Samples, split
from dflash_mlx.train.shards import Shards
from dflash_mlx.train.trainer import freeze_borrowed
from dflash_mlx.train.trial import Trial, try_training, try_writing

MEASURED_TOKENS = 64
"""Tokens decoded behind each held-out prompt."""

_CACHE_SHARE = 0.5
"""Share of the free disk that features may take where nobody says otherwise."""


def first_plan(prepared: Prepared, shards: Shards | None, place: Path, clock: Clock) -> Plan:
    """Return the plan of a run of which nothing is done yet.

    Where the target writes, a shard is written on the way, and kept if there are `shards`.

    Raises:
        OutOfMemoryBudget: training does not fit, whatever gives way.
        BadRequest: the minutes asked for are too few.
    """
    write_s, samples = None, prepared.data.samples
    if prepared.writer is not None:
        samples = prepared.samples(shards) if shards is not None else Samples()
        prepared.writer.remember(samples)
        written = try_writing(prepared.writer, len(shards or ()), clock)
        write_s = written.seconds
        if written.shard is not None:
            samples = Samples([*samples, *written.shard.samples])
            if shards is not None:
                shards.append(written.shard)
    plan = make_plan(prepared, samples, write_s, None, place, clock)
    refuse_too_short(prepared.config, plan.schedule)
    return plan


def make_plan(
    prepared: Prepared,
    samples: Samples,
    write_s: float | None,
    seconds: float | None,
    place: Path,
    clock: Clock,
) -> Plan:
    """Measure training on `samples` and return what fits.

    `write_s` is the time that one more sample takes to write, None where the corpus is whole.
    `seconds` are those that are left, None for all that were asked for. `place` is on the disk
    that features go to.

    Raises:
        OutOfMemoryBudget: training does not fit, whatever gives way.
    """
    data = prepared.data
    at_hand = samples if len(samples) > 1 else invented(prepared.limits)
    trained = split(at_hand)[0]
    fill_vocabulary(prepared, trained)
    scale = _scale(prepared, trained, prepared.limits.max_rows if write_s else 0)
    recipe, gave_way = fitting(scale.needs, _recipe(prepared), prepared.machine.usable_bytes)
    trial = Trial(
        prepared.opened, prepared.beginning, trained, recipe, prepared.prompts[0], MEASURED_TOKENS
    )
    tried = try_training(trial, write_s or 0.0, clock)
    count = len({prompt.kind for prompt in prepared.prompts})
    schedule = scheduled(
        prepared.config,
        seconds,
        Corpus(len(trained if write_s is None else samples), write_s is not None, data.most),
        tried.speeds,
        recipe.sequences,
        Kinds(count, len(prepared.prompts) // count),
    )
    row_bytes = 2 * prepared.beginning.draft.model.config.feature_size
    feature_bytes = int(schedule.n_samples * trained.n_tokens / len(trained) * row_bytes)
    free = free_bytes(place)
    return Plan(
        parameters=prepared.beginning.parameters,
        trained=scale.trained,
        recipe=replace(recipe, steps=schedule.steps),
        schedule=schedule,
        speeds=tried.speeds,
        needs=scale.needs(recipe),
        n_answer_tokens=int(schedule.n_samples * trained.answer_tokens / len(trained)),
        feature_bytes=feature_bytes,
        cache_bytes=min(feature_bytes, _cache(prepared, free)),
        usable_bytes=prepared.machine.usable_bytes,
        free_bytes=free,
        peak_bytes=tried.peak_bytes,
        gave_way=gave_way,
    )


def _recipe(prepared: Prepared) -> Recipe:
    """Return the recipe as far as no machine bounds it; its steps are not known yet."""
    config = prepared.config
    decay = decay_for(prepared.beginning.draft.block_size)
    weighting = cast(Weighting, config.weighting)
    recipe = Recipe(steps=1, weighting=weighting, decay=decay, seed=config.seed)
    if config.learning_rate is None:
        return recipe
    return replace(recipe, learning_rate=config.learning_rate)


def _scale(prepared: Prepared, samples: Samples, rows: int) -> Scale:
    """Return what a step's memory depends on, for samples as long as these, or `rows`."""
    draft, opened = prepared.beginning.draft, prepared.opened
    freeze_borrowed(draft)
    trained = dict(tree_flatten(draft.model.trainable_parameters()))
    longest = max(sample.n_tokens for sample in samples)
    return Scale(
        draft=draft.model.config,
        target_bytes=opened.target_bytes,
        trained=sum(array.size for array in trained.values()),
        rows=max(rows, longest),
        # the whole head comes last, so a step with it has to fit too
        n_ids=draft.model.config.draft_vocab_size or prepared.limits.vocab_size,
        width=opened.dtype.size,
    )


def _cache(prepared: Prepared, free: int) -> int:
    """Return the bytes of disk that features may take."""
    asked = prepared.config.cache_gb
    return int(free * _CACHE_SHARE) if asked is None else int(min(asked * 1e9, free))


def fill_vocabulary(prepared: Prepared, samples: Samples) -> None:
    """Give a draft with a vocabulary of its own the tokens that `samples` answer with most."""
    model = prepared.beginning.draft.model
    if not prepared.beginning.headless:
        return
    counts = np.zeros(prepared.limits.vocab_size, int)
    for sample in samples:
        np.add.at(counts, np.array(sample.answer), 1)
    reduce_vocabulary(model, prepared.opened.loaded.target, counts)


def invented(limits: Limits) -> Samples:
    """Return samples of no meaning, to measure with where none are at hand."""
    length = min(limits.max_rows, 384)
    ids = np.random.default_rng(0).integers(0, limits.vocab_size, (4, length)).tolist()
    return Samples(Sample(tuple(row[:32]), tuple(row[32:])) for row in ids)
