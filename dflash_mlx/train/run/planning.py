"""Makes the plan of a run from measured times and the memory of this machine.

The first plan measures one shard. When the corpus is complete, the steps are measured again.
Must not know the command line.
"""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from mlx.utils import tree_flatten

from dflash_mlx.hub.download import free_bytes
from dflash_mlx.train.data.corpus import ShardFolder
from dflash_mlx.train.data.samples import Sample, SampleLimits, Samples, split_held_out
from dflash_mlx.train.loop.recipe import Recipe, Weighting, position_decay_for
from dflash_mlx.train.loop.trainer import freeze_shared
from dflash_mlx.train.model.initial_draft import fill_reduced_head
from dflash_mlx.train.run.memory import MemoryModel, fit_to_memory, memory_bound
from dflash_mlx.train.run.probe import Clock, ProbeInputs, probe_generation, probe_training
from dflash_mlx.train.run.schedule import (
    CorpusSize,
    PromptKinds,
    TrainingPlan,
    check_minutes,
    make_schedule,
)
from dflash_mlx.train.run.setup import TrainingSetup

EVALUATED_TOKENS = 64
"""Tokens decoded after each held-out prompt: about 40 rounds, 1,000 over all prompts."""

_CACHE_SHARE = 0.5
"""Default share of the free disk for stored features: the rest stays free for other programs."""

_SYNTHETIC_TOKENS = 384
"""Length of a synthetic sample: the mean length of generated samples is of this order."""


def first_plan(
    setup: TrainingSetup, shards: ShardFolder | None, disk: Path, clock: Clock
) -> TrainingPlan:
    """Return the plan of a new run.

    If the target generates the data, this generates a shard, and stores it if there are `shards`.
    `disk` is a path on the disk for the features.

    Raises:
        OutOfMemoryBudget: training does not fit into memory.
        BadRequest: `--minutes` is too short.
    """
    generate_s, samples = None, setup.data.samples
    if setup.writer is not None:
        samples = setup.samples(shards) if shards is not None else Samples()
        setup.writer.exclude(samples)
        probe = probe_generation(setup.writer, len(shards or ()), clock)
        generate_s = probe.seconds
        if probe.shard is not None:
            samples = Samples([*samples, *probe.shard.samples])
            if shards is not None:
                shards.append(probe.shard)
    plan = make_plan(setup, samples, generate_s, None, disk, clock)
    check_minutes(setup.config, plan.schedule)
    return plan


def make_plan(
    setup: TrainingSetup,
    samples: Samples,
    generate_s: float | None,
    seconds: float | None,
    disk: Path,
    clock: Clock,
) -> TrainingPlan:
    """Measure training on `samples` and return the plan.

    Args:
        setup: the run's models and data.
        samples: the samples so far.
        generate_s: seconds to generate one more sample, None if the corpus is complete.
        seconds: time that is left, None for all of the requested time.
        disk: a path on the disk for the features.
        clock: returns seconds.

    Raises:
        OutOfMemoryBudget: training does not fit into memory.
    """
    data, initial = setup.data, setup.initial
    available = samples if len(samples) > 1 else synthetic_samples(setup.limits)
    trained = split_held_out(available)[0]
    fill_vocabulary(setup, trained)
    model = _memory_model(setup, trained, setup.limits.max_seq_length if generate_s else 0)
    recipe, reductions = fit_to_memory(
        model.step_memory, _base_recipe(setup), memory_bound(setup.config, setup.machine)
    )
    inputs = ProbeInputs(setup.target, initial, trained, recipe, setup.prompts[0], EVALUATED_TOKENS)
    probe = probe_training(inputs, generate_s or 0.0, clock)
    grows = generate_s is not None
    n_kinds = len({prompt.kind for prompt in setup.prompts})
    schedule = make_schedule(
        setup.config,
        seconds,
        CorpusSize(len(samples if grows else trained), grows, data.max_samples),
        probe.stages,
        recipe.samples_per_step,
        PromptKinds(n_kinds, len(setup.prompts) // n_kinds),
    )
    feature_bytes = _feature_bytes(setup, trained, schedule.n_samples)
    free = free_bytes(disk)
    return TrainingPlan(
        parameters=initial.parameters,
        trained=model.trained,
        recipe=replace(recipe, steps=schedule.steps),
        schedule=schedule,
        stages=probe.stages,
        memory=model.step_memory(recipe),
        n_answer_tokens=int(schedule.n_samples * trained.answer_tokens / len(trained)),
        feature_bytes=feature_bytes,
        cache_bytes=min(feature_bytes, _cache_limit(setup, free)),
        usable_bytes=setup.machine.usable_bytes,
        free_bytes=free,
        peak_bytes=probe.peak_bytes,
        reductions=reductions,
    )


def _base_recipe(setup: TrainingSetup) -> Recipe:
    """Return the recipe before it is fitted to memory; the number of steps is set later."""
    config = setup.config
    recipe = Recipe(
        steps=1,
        weighting=cast(Weighting, config.weighting),
        position_decay=position_decay_for(setup.initial.draft.block_size),
        seed=config.seed,
    )
    if config.learning_rate is None:
        return recipe
    return replace(recipe, learning_rate=config.learning_rate)


def _memory_model(setup: TrainingSetup, samples: Samples, n_tokens: int) -> MemoryModel:
    """Return the sizes for samples as long as the longest of `samples`, or `n_tokens`."""
    draft, target = setup.initial.draft, setup.target
    freeze_shared(draft)
    trained = dict(tree_flatten(draft.model.trainable_parameters()))
    longest = max(sample.n_tokens for sample in samples)
    return MemoryModel(
        draft=draft.model.config,
        target_bytes=target.weight_bytes,
        trained=sum(array.size for array in trained.values()),
        n_tokens=max(n_tokens, longest),
        # the last steps use the full head, so a step with it has to fit
        n_ids=draft.model.config.draft_vocab_size or setup.limits.vocab_size,
        item_size=target.dtype.size,
    )


def _feature_bytes(setup: TrainingSetup, trained: Samples, n_samples: int) -> int:
    """Return the bytes that the bfloat16 features of `n_samples` samples take."""
    bytes_per_token = 2 * setup.initial.draft.model.config.feature_size
    return int(n_samples * trained.n_tokens / len(trained) * bytes_per_token)


def _cache_limit(setup: TrainingSetup, free: int) -> int:
    """Return the bytes of disk that features may take."""
    given = setup.config.cache_gb
    return int(free * _CACHE_SHARE) if given is None else int(min(given * 1e9, free))


def fill_vocabulary(setup: TrainingSetup, samples: Samples) -> None:
    """Fill a draft's empty reduced head with the most frequent tokens of the answers."""
    if not setup.initial.head_is_empty:
        return
    counts = np.zeros(setup.limits.vocab_size, int)
    for sample in samples:
        np.add.at(counts, np.array(sample.answer), 1)
    fill_reduced_head(setup.initial.draft.model, setup.target.loaded.target, counts)


def synthetic_samples(limits: SampleLimits) -> Samples:
    """Return four samples of random tokens to measure with when there are no others."""
    length = min(limits.max_seq_length, _SYNTHETIC_TOKENS)
    ids = np.random.default_rng(0).integers(0, limits.vocab_size, (4, length)).tolist()
    return Samples(Sample(tuple(row[:32]), tuple(row[32:])) for row in ids)
