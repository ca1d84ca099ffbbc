"""From the name of a model to an engine: files found or downloaded, then loaded as a pair.

It must not know requests or the decode loop.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from dflash_mlx.config import CacheConfig, ComputeDType, KernelPolicy, SamplingConfig
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.measured_costs import with_costs
from dflash_mlx.engine.scheduler import DEFAULT_PARALLEL
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest, UnknownModel
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import Resolved, resolve
from dflash_mlx.kernels.pair_kernels import install_kernels, refuse_force
from dflash_mlx.loading.compatibility import check_draft_config, check_target_config
from dflash_mlx.loading.compute import Compute, compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import load_target
from dflash_mlx.models.pair import Pair
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.pairs.manifest import check_manifest, trained_thinking
from dflash_mlx.pairs.pairing import Choice, choose
from dflash_mlx.system.blas import blas_in_use
from dflash_mlx.system.settings import settings_folder

ConfigCheck = Callable[[Mapping[str, Any], str], object]
"""Takes a `config.json` and its source; raises if the checkpoint is unsuitable."""


@dataclass(frozen=True)
class LoadHooks:
    """Callbacks that report how loading proceeds.

    Args:
        on_step: receives one line per step, also for autotuning between the first requests.
        on_progress: receives downloaded bytes and total bytes.
        on_notice: receives one line when something differs from what was asked for.

    Examples:
        >>> hooks = dflash_mlx.LoadHooks(on_step=print)
        >>> hooks.on_notice("nothing is printed for notices")
    """

    on_step: Callable[[str], None] = lambda text: None
    on_progress: Callable[[int, int], None] = lambda done, total: None
    on_notice: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class PairFiles:
    """The local files of a target and, if there is one, of its draft."""

    choice: Choice
    target: Resolved
    draft: Resolved | None


def load(
    model: str = "smollm2-135m",
    draft: str = "auto",
    cache: CacheConfig | None = None,
    hooks: LoadHooks | None = None,
    kernels: KernelPolicy = "auto",
    dtype: ComputeDType = "auto",
    parallel: int = DEFAULT_PARALLEL,
) -> Engine:
    """Return an engine for a model. Blocks until both models are in memory.

    Args:
        model: a nickname, a local folder, a `.gguf` file or a hub id.
        draft: "auto" (the draft trained for the model), "none" (plain decoding), "copy" (no draft
            model; draft tokens are copied from the context), or a name in the same forms as
            `model`.
        cache: bounds on the KV caches.
        hooks: callbacks that report progress.
        kernels: which Metal kernels verify blocks: "auto" (those that are correct and faster on
            this machine), "off" (none) or "force" (all that are correct).
        dtype: how weights are computed with: "auto" (as stored on Metal, float32 on a CPU),
            "stored" (as stored, like mlx-lm: on a CPU with 16-bit weights the greedy text then
            equals mlx-lm's) or "float32".
        parallel: requests that run in turns; more of them wait in order of arrival.

    Raises:
        BadRequest: kernels are forced on a machine without a Metal device, or `parallel` is not
            a positive whole number.
        UnknownModel, DownloadFailed: the files were not found or could not be downloaded.
        BadCheckpoint, UnsupportedModel, PairMismatch: the files cannot be run, or do not fit
            together.

    Examples:
        >>> with dflash_mlx.load("smollm2-135m") as engine:
        ...     engine.loaded.pair.target.shape.n_layers
        30
    """
    hooks = hooks or LoadHooks()
    refuse_force(kernels)
    if parallel < 1:
        raise BadRequest(f"parallel is {parallel}; it needs a whole number of at least 1")
    files = fetch_files(choose(model, draft), hooks)
    worker = Worker(f"dflash-mlx {model}", parallel)
    try:
        compute = compute_here(dtype)
        loaded = worker.run(
            lambda: _load_on_worker(files, compute, cache or CacheConfig(), hooks, kernels)
        )
        return Engine(loaded, worker)
    except BaseException:
        worker.close()
        raise


def fetch_files(choice: Choice, hooks: LoadHooks) -> PairFiles:
    """Return the local files of a target and a draft, downloading what is missing.

    Raises:
        UnknownModel, DownloadFailed: the files were not found or could not be downloaded.
        BadCheckpoint, UnsupportedModel: the target is not a target, or the draft not a draft.
    """
    pins = Pins(settings_folder())

    def files(reference: str, revision: str | None, check: ConfigCheck) -> Resolved:
        return resolve(
            reference,
            pins=pins,
            revision=revision,
            on_step=hooks.on_step,
            on_progress=hooks.on_progress,
            # an unsuitable checkpoint is refused before its gigabytes of weights are fetched
            check_config=lambda config: check(config, reference),
        )

    try:
        target = files(choice.target, choice.target_revision, check_target_config)
    except UnknownModel as error:
        if choice.fallback is None:
            raise
        hooks.on_notice(f"{error}; using {choice.fallback} instead, whose weights differ")
        choice = replace(choice, target=choice.fallback)
        target = files(choice.target, None, check_target_config)
    draft = None
    if choice.draft:
        draft = files(choice.draft, choice.draft_revision, check_draft_config)
    return PairFiles(choice, target, draft)


def assemble(
    files: PairFiles, compute: Compute, cache: CacheConfig, hooks: LoadHooks
) -> LoadedPair:
    """Load the pair in `files` on the calling thread and return it, without kernels and costs.

    Raises:
        BadCheckpoint, UnsupportedModel, PairMismatch: the files cannot be run, or do not fit
            together.
    """
    choice = files.choice
    paths = files.target.path, files.draft.path if files.draft else None
    check_manifest(*paths)
    hooks.on_step(f"loading {choice.target}")
    read = load_target(files.target.path, compute)
    for line in read.notices:
        hooks.on_notice(line)
    bound = None
    if files.draft is not None:
        hooks.on_step(f"loading draft {choice.draft}")
        bound = load_draft(files.draft.path, read.target, compute)
    return LoadedPair(
        pair=Pair(read.target, bound),
        tokenizer=read.tokenizer,
        sampling=_recommended_sampling(read.sampling, choice.card),
        compute=compute,
        cache_config=cache,
        model_name=choice.target,
        draft_name=choice.draft,
        blas=blas_in_use(),
        quantized="quantization" in read.config,
        trained_thinking=choice.card.thinking if choice.card else trained_thinking(*paths),
        no_draft=choice.no_draft,
        copies=choice.copies,
    )


def _recommended_sampling(defaults: SamplingConfig, card: PairCard | None) -> SamplingConfig:
    """Return the model's own sampling defaults with those of its card, if it names any."""
    recommended = {
        name: value
        for name in ("temperature", "top_p")
        if card is not None and (value := getattr(card, name)) is not None
    }
    return replace(defaults, **recommended)


def _load_on_worker(
    files: PairFiles,
    compute: Compute,
    cache: CacheConfig,
    hooks: LoadHooks,
    policy: KernelPolicy,
) -> LoadedPair:
    mx.clear_cache()  # buffers of a pair that was closed before
    loaded = assemble(files, compute, cache, hooks)
    kernels = install_kernels(loaded.pair, policy, on_step=hooks.on_step)
    if kernels is not None and policy == "force":
        kernels.autotune(hooks.on_step, budget_s=math.inf)
    loaded = with_costs(replace(loaded, kernels=kernels), hooks.on_step)
    mx.clear_cache()
    mx.reset_peak_memory()
    return loaded
