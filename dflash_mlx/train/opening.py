"""From a run's options to a target in memory and the draft to be trained for it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
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
from dflash_mlx.train.beginning import cut_vocabulary, new_draft, settle_logits
from dflash_mlx.train.mask_token import mask_token
from dflash_mlx.train.options import TrainConfig
from dflash_mlx.train.shape import draft_shape

_WORKING = 1.3
"""Memory that a target takes while it writes, in its weights': room for its caches."""


@dataclass(frozen=True)
class Opened:
    """A target in memory, and what a run needs to know of it.

    `identity` changes when the weights do. `thinking` is the mode of all its answers, None where
    it has none. Drafts are trained in `dtype`.
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
    def target_bytes(self) -> int:
        """Bytes of the target's weights."""
        return weight_bytes(self.loaded.target.model)


def open_target(config: TrainConfig, machine: Machine, hooks: LoadHooks) -> Opened:
    """Return the target that a run is for.

    Raises:
        UnknownModel, DownloadFailed, BadCheckpoint, UnsupportedModel: it cannot be had, or run.
        OutOfMemoryBudget: it does not fit into this machine.
        BadRequest: it has no thinking mode and one is asked for.
    """
    files = fetch_files(choose(config.target, config.init or "none"), hooks)
    path, compute = files.target.path, compute_here()
    _check_room(load_target(path, replace(compute, outline=True)), config.target, machine)
    hooks.on_step(f"loading {files.choice.target}")
    loaded = load_target(path, compute)
    return Opened(
        name=_name(config.target, files),
        revision=files.target.revision,
        identity=_identity(files.target),
        loaded=loaded,
        compute=compute,
        dtype=mx.float32 if compute.device == "cpu" else mx.bfloat16,
        thinking=_thinking(config, loaded),
        files=files,
    )


def _name(asked: str, files: PairFiles) -> str:
    """Return what a card may call the target: a hub id or a nickname, and never a place."""
    if files.target.source == "path":
        return files.target.path.resolve().name
    return files.choice.target if files.target.revision else asked


def _check_room(outline: LoadedTarget, name: str, machine: Machine) -> None:
    needed, usable = weight_bytes(outline.target.model) * _WORKING, machine.usable_bytes
    if usable is not None and needed > usable:
        raise OutOfMemoryBudget(
            f"{name} takes about {needed / 1e9:.1f} GB while it writes and {usable / 1e9:.1f} GB "
            "can be had; take a target in fewer bits, which dflash-mlx convert makes"
        )


def _identity(found: Resolved) -> str:
    """Return what tells these weights from others: the commit, or their files' size and age."""
    if found.revision:
        return found.revision
    path = found.path
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _thinking(config: TrainConfig, loaded: LoadedTarget) -> bool | None:
    if not loaded.tokenizer.has_thinking:
        if config.thinking:
            raise BadRequest(f"{config.target} has no thinking mode; leave out --thinking")
        return None
    # mlx-lm lets a model think unless told otherwise, and so do we
    return True if config.thinking is None else config.thinking


@dataclass(frozen=True)
class Beginning:
    """The draft to be trained, bound to its target, with the `config.json` it will have.

    `headless` where a reduced vocabulary is yet to be filled from what the samples hold.
    """

    draft: BoundDraft
    config: Mapping[str, Any]
    headless: bool = False

    @property
    def parameters(self) -> int:
        """Parameters in all."""
        return int(get_total_parameters(self.draft.model))


def begin_draft(config: TrainConfig, opened: Opened) -> Beginning:
    """Return a new draft, or the one that `--init` names, in float32.

    Raises:
        BadRequest: a shape that this target, or the draft to begin from, does not allow.
        BadCheckpoint, UnsupportedModel, PairMismatch: the draft to begin from does not fit.
    """
    target = opened.loaded.target
    given = opened.files.draft
    if given is not None:
        dense = Compute(opened.compute.device, dense=True, dtype=mx.float32)
        draft, found = load_draft(given.path, target, dense), _plain_config(given.path)
        size = config.wishes.vocabulary
        if size is None or size >= draft.model.config.vocab_size:
            return Beginning(draft, found)
        cut = bind(cut_vocabulary(draft.model, size), target)
        return Beginning(cut, {**found, "draft_vocab_size": size}, headless=True)
    made = draft_shape(
        target.shape,
        opened.loaded.config,
        int(get_total_parameters(target.model)),
        mask_token(opened.loaded.tokenizer, target.shape.vocab_size),
        config.wishes,
    )
    draft = bind(new_draft(read_draft_config(made), config.seed), target)
    settle_logits(draft)
    return Beginning(draft, made, headless=config.wishes.vocabulary is not None)


def _plain_config(folder: Path) -> dict[str, Any]:
    """Return a draft's configuration as it is without quantization."""
    config = read_json(folder / "config.json")
    dropped = ("quantization", "quantization_config", "torch_dtype")
    return {key: value for key, value in config.items() if key not in dropped} | {
        "dtype": "bfloat16"
    }
