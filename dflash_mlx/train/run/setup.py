"""Loads what a run works with: the target, the initial draft, the data and the held-out prompts.

Must not know plans or run folders.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx_lm.utils import get_total_parameters

from dflash_mlx.engine.load import LoadHooks, PairFiles, fetch_files
from dflash_mlx.errors import BadRequest, OutOfMemoryBudget
from dflash_mlx.hub.resolve import Resolved
from dflash_mlx.loading.compute import Compute, compute_here, weight_bytes
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import LoadedTarget, load_target
from dflash_mlx.models.draft.build import bind
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.pairs.pairing import choose
from dflash_mlx.system.json_file import read_json
from dflash_mlx.system.machine import Machine
from dflash_mlx.system.paths import bare_name
from dflash_mlx.train.data.corpus import CorpusConfig, CorpusWriter, ShardFolder
from dflash_mlx.train.data.generation import GenerationLimits
from dflash_mlx.train.data.samples import SampleFilter, SampleLimits, Samples
from dflash_mlx.train.data.sources import ChatPrompt, read_source
from dflash_mlx.train.loop.evaluate import HeldOutPrompt, held_out_prompts
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.model.initial_draft import (
    new_draft,
    normalize_logits,
    with_reduced_vocabulary,
)
from dflash_mlx.train.model.shape import choose_mask_token, new_draft_config
from dflash_mlx.train.run.memory import MAX_BATCH, batch_size_for, memory_bound
from dflash_mlx.train.run.options import SELF, TrainConfig
from dflash_mlx.train.run.schedule import samples_for_steps

_GENERATION_FACTOR = 1.3
"""Memory of a target that generates, relative to its weights: the rest is for its KV caches."""

_MIN_SHARD = 16
"""Samples per shard at least: some are dropped, and several empty shards end the run."""

_MAX_ANSWER_TOKENS = 512
"""Upper bound of an answer; acceptance depends little on the position in an answer."""


@dataclass(frozen=True)
class TrainingTarget:
    """A loaded target and what a run needs to know about it.

    `identity` changes with the weights. `thinking` is the mode of all answers, None for a target
    without thinking mode. Drafts are trained with a forward in `dtype`.
    """

    name: str
    revision: str | None
    identity: str
    loaded: LoadedTarget
    compute: Compute
    dtype: mx.Dtype
    thinking: bool | None
    files: PairFiles

    @property
    def weight_bytes(self) -> int:
        """Bytes of the target's weights."""
        return weight_bytes(self.loaded.target.model)


@dataclass(frozen=True)
class InitialDraft:
    """The draft to train, bound to its target, and its `config.json`.

    `head_is_empty` is True for a reduced vocabulary, which is filled from the samples.
    """

    draft: BoundDraft
    config: Mapping[str, Any]
    head_is_empty: bool = False

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return int(get_total_parameters(self.draft.model))


@dataclass(frozen=True)
class TrainingData:
    """The data of a run: `samples` in token ids, or `prompts` that the target answers.

    With `generated` and without `prompts`, the target generates the prompts too. `source` is a
    name without a path. `dropped` describes what was left out.
    """

    source: str
    samples: Samples
    generated: bool
    prompts: list[ChatPrompt] | None = None
    dropped: str = ""

    @property
    def max_samples(self) -> int | None:
        """Largest possible number of samples, None without a bound."""
        return len(self.prompts) if self.prompts is not None else None


@dataclass(frozen=True)
class TrainingSetup:
    """Everything that a run works with. `writer` is None if the data are token ids."""

    config: TrainConfig
    machine: Machine
    target: TrainingTarget
    initial: InitialDraft
    limits: SampleLimits
    data: TrainingData
    prompts: list[HeldOutPrompt]
    writer: CorpusWriter | None

    def samples(self, shards: ShardFolder) -> Samples:
        """Return the samples so far: those that were read, or those in `shards`."""
        if not self.data.generated:
            return self.data.samples
        return Samples(sample for shard in shards for sample in shard.samples)

    def prompts_by_kind(self, per_kind: int) -> list[HeldOutPrompt]:
        """Return the first `per_kind` held-out prompts of every kind."""
        kinds: dict[str, list[HeldOutPrompt]] = {}
        for prompt in self.prompts:
            kinds.setdefault(prompt.kind, []).append(prompt)
        return [prompt for found in kinds.values() for prompt in found[:per_kind]]


def set_up(config: TrainConfig, machine: Machine, hooks: LoadHooks) -> TrainingSetup:
    """Load target, draft and data; nothing is measured or written yet.

    Raises:
        DFlashError: the target, the draft or the data cannot be used.
    """
    target = load_training_target(config, machine, hooks)
    initial = load_initial_draft(config, target)
    shape = target.loaded.target.shape
    mask = initial.draft.model.config.mask_token_id
    limits = SampleLimits(shape.vocab_size, min(config.max_seq_length, shape.context_length), mask)
    hooks.on_step(f"reading {config.data}" if config.data != SELF else "preparing the draft")
    data = load_data(config, limits)
    prompts = held_out_prompts(target.loaded.tokenizer, target.thinking)
    writer = _corpus_writer(config, machine, target, limits, data) if data.generated else None
    return TrainingSetup(config, machine, target, initial, limits, data, prompts, writer)


def load_training_target(config: TrainConfig, machine: Machine, hooks: LoadHooks) -> TrainingTarget:
    """Load the target of a run.

    Raises:
        UnknownModel, DownloadFailed, BadCheckpoint, UnsupportedModel: it cannot be loaded.
        OutOfMemoryBudget: it does not fit into this machine's memory.
        BadRequest: `--thinking` is given and the target has no thinking mode.
    """
    files = fetch_files(choose(config.target, config.init or "none"), hooks)
    path, compute = files.target.path, compute_here()
    _check_memory(load_target(path, replace(compute, outline=True)), config.target, machine)
    hooks.on_step(f"loading {files.choice.target}")
    loaded = load_target(path, compute)
    return TrainingTarget(
        name=_public_name(config.target, files),
        revision=files.target.revision,
        identity=_weights_identity(files.target),
        loaded=loaded,
        compute=compute,
        dtype=mx.float32 if compute.device == "cpu" else mx.bfloat16,
        thinking=_thinking_mode(config, loaded),
        files=files,
    )


def _public_name(given: str, files: PairFiles) -> str:
    """Return the target's name for the model card: a hub id, a nickname or a folder's name."""
    if files.target.source == "path":
        return files.target.path.resolve().name
    return files.choice.target if files.target.revision else given


def _check_memory(outline: LoadedTarget, name: str, machine: Machine) -> None:
    needed = weight_bytes(outline.target.model) * _GENERATION_FACTOR
    usable = machine.usable_bytes
    if usable is not None and needed > usable:
        raise OutOfMemoryBudget(
            f"{name} needs about {needed / 1e9:.1f} GB to generate and {usable / 1e9:.1f} GB are "
            "usable; choose a target with fewer bits (dflash-mlx convert)"
        )


def _weights_identity(found: Resolved) -> str:
    """Return the commit of a hub snapshot, or a hash of the files' names, sizes and times."""
    if found.revision:
        return found.revision
    path = found.path
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _thinking_mode(config: TrainConfig, loaded: LoadedTarget) -> bool | None:
    if not loaded.tokenizer.has_thinking:
        if config.thinking:
            raise BadRequest(f"{config.target} has no thinking mode; leave out --thinking")
        return None
    # the default of mlx-lm, and of `chat`
    return True if config.thinking is None else config.thinking


def load_initial_draft(config: TrainConfig, target: TrainingTarget) -> InitialDraft:
    """Return a new draft, or the one that `--init` names, in float32.

    Raises:
        BadRequest: the target or the draft in `--init` does not allow the requested shape.
        BadCheckpoint, UnsupportedModel, PairMismatch: the draft in `--init` cannot be used.
    """
    loaded = target.loaded.target
    given = target.files.draft
    size = config.overrides.vocabulary
    if given is not None:
        dense = Compute(target.compute.device, dense=True, dtype=mx.float32)
        draft, found = load_draft(given.path, loaded, dense), _unquantized_config(given)
        if size is None or size >= draft.model.config.vocab_size:
            return InitialDraft(draft, found)
        reduced = bind(with_reduced_vocabulary(draft.model, size), loaded)
        return InitialDraft(reduced, {**found, "draft_vocab_size": size}, head_is_empty=True)
    made = new_draft_config(
        loaded.shape,
        target.loaded.config,
        int(get_total_parameters(loaded.model)),
        choose_mask_token(target.loaded.tokenizer, loaded.shape.vocab_size),
        config.overrides,
    )
    draft = bind(new_draft(read_draft_config(made), config.seed), loaded)
    normalize_logits(draft)
    return InitialDraft(draft, made, head_is_empty=size is not None)


def _unquantized_config(draft: Resolved) -> dict[str, Any]:
    """Return a draft's `config.json` without the keys of its quantization."""
    config = read_json(draft.path / "config.json")
    dropped = ("quantization", "quantization_config", "torch_dtype")
    return {key: value for key, value in config.items() if key not in dropped} | {
        "dtype": "bfloat16"
    }


def load_data(config: TrainConfig, limits: SampleLimits) -> TrainingData:
    """Read the data of a run; samples in token ids are filtered, nothing is generated yet.

    Raises:
        BadRequest: the data cannot be used.
        UnknownModel, DownloadFailed: there is no such file or data set.
    """
    if config.data == SELF:
        return TrainingData(SELF, Samples(), generated=True)
    found = read_source(config.data, config.samples)
    source = bare_name(config.data)
    if found.prompts:
        empty = found.n_without_prompt
        dropped = f"dropped {empty} rows without a prompt" if empty else ""
        return TrainingData(source, Samples(), True, found.prompts, dropped)
    sample_filter = SampleFilter(limits)
    accepted = [sample_filter.accept(sample, source) for sample in found.samples]
    samples = Samples(sample for sample in accepted if sample)
    if not samples:
        raise BadRequest(
            f"{source} has no usable sample: {sample_filter.summary()}; give other data"
        )
    return TrainingData(source, samples, generated=False, dropped=sample_filter.summary())


def _shard_size(config: TrainConfig) -> int:
    """Return the samples per shard: a full batch, or fewer if the options ask for fewer."""
    requested = config.samples or MAX_BATCH
    if config.samples is None and config.steps is not None:
        requested = samples_for_steps(config.steps, Recipe(steps=1).samples_per_step)
    return min(MAX_BATCH, max(_MIN_SHARD, requested))


def _corpus_writer(
    config: TrainConfig,
    machine: Machine,
    target: TrainingTarget,
    limits: SampleLimits,
    data: TrainingData,
) -> CorpusWriter:
    # a quarter of the length limit is left to the prompt
    max_tokens = max(2, min(_MAX_ANSWER_TOKENS, limits.max_seq_length * 3 // 4))
    machine_bytes, loaded = memory_bound(config, machine), target.loaded.target
    sequence_bytes = loaded.shape.row_bytes * limits.max_seq_length
    batch_size = batch_size_for(machine_bytes, target.weight_bytes, sequence_bytes)
    corpus = CorpusConfig(
        shard_size=_shard_size(config),
        limits=GenerationLimits(batch_size, max_tokens),
        sampling=config.answer_sampling,
        thinking=target.thinking,
        seed=config.seed,
    )
    return CorpusWriter(target.loaded, corpus, limits, data.prompts)
