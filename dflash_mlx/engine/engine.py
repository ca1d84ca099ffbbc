"""A loaded pair and the thread that serves it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import mlx.core as mx

from dflash_mlx.config import CacheConfig, GenerationConfig, KernelPolicy
from dflash_mlx.engine.learning import keep, measured_again, tuned
from dflash_mlx.engine.loaded import LoadedPair, Prompt
from dflash_mlx.engine.session import Session
from dflash_mlx.engine.stream import Result, Stream
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import DFlashError, UnknownModel
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import Resolved, resolve
from dflash_mlx.kernels.pair_kernels import PairKernels, put_kernels, refuse_force
from dflash_mlx.loading.compatibility import check_draft_config, check_target_config
from dflash_mlx.loading.compute import Compute, compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import load_target
from dflash_mlx.models.pair import Pair
from dflash_mlx.pairs.manifest import check_cards, trained_thinking
from dflash_mlx.pairs.pairing import Choice, choose
from dflash_mlx.system.blas import blas_in_use
from dflash_mlx.system.settings import settings_folder

ConfigCheck = Callable[[Mapping[str, Any], str], object]
"""Refuses a `config.json` that the reference should not have, before weights are fetched."""


@dataclass(frozen=True)
class LoadHooks:
    """Who is told how loading goes, and later how kernels race between the first requests.

    Each step is a line, a download is bytes done and in all, and a notice is a line about
    something that turned out differently and that the user should know.
    """

    on_step: Callable[[str], None] = lambda text: None
    on_progress: Callable[[int, int], None] = lambda done, total: None
    on_notice: Callable[[str], None] = lambda text: None


class Engine:
    """A target with its draft, ready to answer. Use it from any thread; close it when done."""

    def __init__(self, loaded: LoadedPair, worker: Worker) -> None:
        self._loaded: LoadedPair | None = loaded
        self.worker = worker

    @property
    def loaded(self) -> LoadedPair:
        """The pair in memory.

        Raises:
            DFlashError: the engine is closed.
        """
        if self._loaded is None:
            raise DFlashError("this engine is closed; load the model again")
        return self._loaded

    def stream(self, prompt: Prompt, config: GenerationConfig | None = None) -> Stream:
        """Answer `prompt` in a conversation of its own; see `Session.stream`."""
        return self.session().stream(prompt, config)

    def generate(self, prompt: Prompt, config: GenerationConfig | None = None) -> Result:
        """Answer `prompt` in a conversation of its own and return the whole answer."""
        return self.stream(prompt, config).result()

    def session(self, system: str | None = None) -> Session:
        """Return a new conversation, which keeps both models' rows from turn to turn."""
        return Session(self.loaded, self.worker, system)

    def race_kernels(self, on_step: Callable[[str], None] = lambda text: None) -> None:
        """Race now, for at most 20 s, the Metal kernels that this machine never raced.

        It happens by itself after the first answer, between requests; `on_step` is told each.
        """
        if (kernels := self.loaded.kernels) is not None:
            self.worker.run(lambda: _race(self.loaded, kernels, on_step))

    def close(self) -> None:
        """Cancel what runs and what waits, keep what was learned, and let go of the models.

        Sessions hold the models too: they are free once the sessions are gone.
        """
        self.worker.close()
        if self._loaded is not None:
            keep(self._loaded)
            self._loaded = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def load(
    model: str = "smollm2-135m",
    draft: str = "auto",
    cache: CacheConfig | None = None,
    hooks: LoadHooks | None = None,
    kernels: KernelPolicy = "auto",
) -> Engine:
    """Return an engine for a nickname, a local folder, a `.gguf` file or a hub id.

    `draft` is "auto" (the one that belongs to the model), "none" (plain decoding), or a name
    like `model`. `kernels` says which Metal kernels serve blocks: those that are right and
    faster on this machine, none ("off"), or all that are right ("force"). Blocks until both
    models are in memory.

    Raises:
        BadRequest: kernels are forced where there is no Metal device.
        UnknownModel, DownloadFailed: the files could not be found or brought here.
        BadCheckpoint, UnsupportedModel, PairMismatch: the files cannot be run, or not together.
    """
    hooks = hooks or LoadHooks()
    refuse_force(kernels)
    files = bring(choose(model, draft), hooks)
    worker = Worker(f"dflash-mlx {model}")
    try:
        loaded = worker.run(lambda: _load(files, cache or CacheConfig(), hooks, kernels))
        return Engine(loaded, worker)
    except BaseException:
        worker.close()
        raise


@dataclass(frozen=True)
class Files:
    """What a choice stands for, found or brought: a target's files, and a draft's if any."""

    choice: Choice
    target: Resolved
    draft: Resolved | None


def assemble(files: Files, compute: Compute, cache: CacheConfig, hooks: LoadHooks) -> LoadedPair:
    """Return the pair in these files, loaded as `compute` says, on the calling thread.

    Raises:
        BadCheckpoint, UnsupportedModel, PairMismatch: they cannot be run, or not together.
    """
    choice = files.choice
    places = files.target.path, files.draft.path if files.draft else None
    check_cards(*places)
    hooks.on_step(f"loading {choice.target}")
    read = load_target(files.target.path, compute)
    bound = None
    if files.draft is not None:
        hooks.on_step(f"loading draft {choice.draft}")
        bound = load_draft(files.draft.path, read.target, compute)
    return LoadedPair(
        pair=Pair(read.target, bound),
        tokenizer=read.tokenizer,
        sampling=read.sampling,
        compute=compute,
        cache_config=cache,
        model_name=choice.target,
        draft_name=choice.draft,
        blas=blas_in_use(),
        quantized="quantization" in read.config,
        trained_thinking=choice.card.thinking if choice.card else trained_thinking(*places),
        no_draft=choice.no_draft,
    )


def bring(choice: Choice, hooks: LoadHooks) -> Files:
    """Return the files of a target and a draft, downloaded if they are not here.

    Raises:
        UnknownModel, DownloadFailed: they could not be found or brought here.
        BadCheckpoint, UnsupportedModel: they are not what they are wanted for.
    """
    pins = Pins(settings_folder())

    def files(reference: str, revision: str | None, check: ConfigCheck) -> Resolved:
        return resolve(
            reference,
            pins=pins,
            revision=revision,
            on_step=hooks.on_step,
            on_progress=hooks.on_progress,
            # refused here, gigabytes of weights are never fetched
            check_config=lambda config: check(config, reference),
        )

    try:
        target = files(choice.target, choice.target_revision, check_target_config)
    except UnknownModel as error:
        if choice.fallback is None:
            raise
        hooks.on_notice(f"{error}; taking {choice.fallback} instead, whose weights differ")
        choice = replace(choice, target=choice.fallback)
        target = files(choice.target, None, check_target_config)
    draft = None
    if choice.draft:
        draft = files(choice.draft, choice.draft_revision, check_draft_config)
    return Files(choice, target, draft)


def _load(files: Files, cache: CacheConfig, hooks: LoadHooks, policy: KernelPolicy) -> LoadedPair:
    mx.clear_cache()  # what a pair that was closed before has left
    loaded = assemble(files, compute_here(), cache, hooks)
    kernels = put_kernels(loaded.pair, policy, on_step=hooks.on_step)
    if kernels is not None and policy == "force":
        kernels.race(hooks.on_step, budget_s=math.inf)
    loaded = tuned(replace(loaded, kernels=kernels), hooks.on_step)
    mx.clear_cache()
    mx.reset_peak_memory()
    return loaded


def _race(loaded: LoadedPair, kernels: PairKernels, on_step: Callable[[str], None]) -> None:
    kernels.race(on_step)
    mx.clear_cache()
    measured_again(loaded)
