"""From a folder or a file to a target, a draft, and the check that they belong together.

Weights and modules of a target are mlx-lm's; those of a draft are ours. This file downloads
nothing and keeps nothing.
"""

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.nn as nn

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadCheckpoint, BadRequest, PairMismatch, UnsupportedModel
from dflash_mlx.gguf.read import read_gguf
from dflash_mlx.gguf.tokenizer import build_tokenizer
from dflash_mlx.loading.compute import Compute, settle_weights, without_half
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.loading.weights import fill, read_safetensors
from dflash_mlx.models.draft.build import bind, draft_model
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.config_file import is_draft_config, read_draft_config
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.draft.tensor_names import runtime_name
from dflash_mlx.models.protocols import Target
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.families import family_of
from dflash_mlx.system.json_file import read_json

_LOG = logging.getLogger("dflash_mlx")


@dataclass(frozen=True)
class LoadedTarget:
    """A target with what its folder says about text and sampling."""

    target: DecoderTarget
    tokenizer: Tokenizer
    sampling: SamplingConfig
    config: Mapping[str, Any]


def load_target(path: Path, compute: Compute) -> LoadedTarget:
    """Return the target in a folder or `.gguf` file, in memory.

    Raises:
        BadCheckpoint: files are missing, truncated or contradict their configuration.
        UnsupportedModel: a family or format that does not run here, or a draft.
    """
    if path.is_file():
        return _load_gguf(path, compute)
    config = read_json(path / "config.json")
    check_target_config(config, str(path))
    model = _read_model(path)
    target = family_of(str(config.get("model_type")), str(path))(model)
    settle_weights(model, compute)
    _LOG.info("%s: %s", path, target.shape)
    generation = _optional_json(path / "generation_config.json")
    return LoadedTarget(
        target,
        Tokenizer.read(path, _eos_token_ids(config, config.get("text_config") or {}, generation)),
        sampling_defaults(generation),
        config,
    )


def load_draft(path: Path, target: Target, compute: Compute) -> BoundDraft:
    """Return the draft in a folder, in memory and bound to `target`.

    Raises:
        BadCheckpoint: files are missing, truncated or contradict their configuration.
        UnsupportedModel: a draft of a kind that does not run here, or no draft at all.
        PairMismatch: the draft was made for another target.
    """
    config = check_draft_config(read_json(path / "config.json"), str(path))
    check_pair(config, target, str(path))
    weights = {
        ours: array
        for name, array in read_safetensors(path).items()
        if (ours := runtime_name(name)) is not None
    }
    model = draft_model(config, weights)
    # on a CPU the stored values go to float32 as they are
    used = weights if compute.dense else without_half(weights)
    fill(model, used, str(path), config.quantization)
    settle_weights(model, compute)
    return bind(model, target)


def check_target_config(config: Mapping[str, Any], source: str) -> None:
    """Raise UnsupportedModel unless `config` is that of a target of a family walked here."""
    if is_draft_config(config):
        raise UnsupportedModel(
            f"{source} holds a draft, not a target; give the model it was trained for as --model, "
            "and this one as --draft"
        )
    family_of(str(config.get("model_type")), source)


def check_draft_config(config: Mapping[str, Any], source: str) -> DraftConfig:
    """Return the draft's configuration; raise UnsupportedModel or BadCheckpoint if it is none."""
    if not is_draft_config(config):
        raise UnsupportedModel(
            f"{source} holds a {config.get('model_type')!r} target, not a draft; give a DFlash "
            "draft as --draft, or --draft none"
        )
    return read_draft_config(config, f"{source}/config.json")


_PADDING = 1024
"""Rows by which builds of one vocabulary are padded apart, at most."""


def check_pair(draft: DraftConfig, target: Target, source: str) -> None:
    """Raise PairMismatch where the draft's shapes do not fit the target's."""
    shape = target.shape
    width = draft.target_hidden_size or draft.hidden_size
    facts = [
        ("hidden size", draft.hidden_size, shape.hidden_size),
        ("taps of width", width, shape.hidden_size),
    ]
    if draft.num_target_layers is not None:
        facts.append(("target layers", draft.num_target_layers, shape.n_layers))
    if abs(draft.vocab_size - shape.vocab_size) >= _PADDING:
        facts.append(("a vocabulary of", draft.vocab_size, shape.vocab_size))
    for what, needs, has in facts:
        if needs != has:
            raise PairMismatch(
                f"{source} expects {what} {needs}, this target has {has}; "
                "pairs that fit: dflash-mlx models"
            )
    if max(draft.target_layer_ids) >= shape.n_layers:
        raise PairMismatch(
            f"{source} taps layer {max(draft.target_layer_ids)}, this target has layers 0 to "
            f"{shape.n_layers - 1}; pairs that fit: dflash-mlx models"
        )
    if draft.mask_token_id >= shape.vocab_size:
        raise PairMismatch(
            f"{source} masks with token {draft.mask_token_id}, this target has "
            f"{shape.vocab_size} tokens; pairs that fit: dflash-mlx models"
        )


def sampling_defaults(generation: Mapping[str, Any]) -> SamplingConfig:
    """Return what a `generation_config.json` asks for; greedy where it asks for nothing."""
    if not generation.get("do_sample", False):
        return SamplingConfig()
    wanted = {
        name: generation[name]
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        if generation.get(name) is not None
    }
    try:
        return SamplingConfig(**{"temperature": 1.0, **wanted})
    except BadRequest as error:
        raise BadCheckpoint(f"generation_config.json: {error}") from error


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _read_model(path: Path) -> nn.Module:
    """Return mlx-lm's model of a folder, its weights not yet read."""
    from mlx_lm.utils import load_model

    read_safetensors(path)  # mlx-lm's own message for a broken file names no file
    try:
        model, _ = load_model(path, lazy=True)
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise BadCheckpoint(f"{path} does not load as a model: {reason}") from error
    return model


def _load_gguf(path: Path, compute: Compute) -> LoadedTarget:
    if path.suffix != ".gguf":
        raise UnsupportedModel(f"{path} is no model; give a folder or a .gguf file")
    read = read_gguf(path, outline=compute.outline)
    family = family_of(read.config["model_type"], str(path))
    module = importlib.import_module(f"mlx_lm.models.{read.config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(read.config))
    fill(model, read.weights, str(path), read.config.get("quantization"))
    read.weights.clear()
    target = family(model)
    settle_weights(model, compute)
    _LOG.info("%s: %s", path, target.shape)
    tokenizer = Tokenizer(build_tokenizer(read.tokenizer), read.tokenizer.eos_token_ids)
    return LoadedTarget(target, tokenizer, SamplingConfig(), read.config)


def _eos_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the union of the end tokens that configurations name."""
    ids: set[int] = set()
    for config in configs:
        stated = config.get("eos_token_id")
        ids.update([stated] if isinstance(stated, int) else stated or [])
    return tuple(sorted(ids))
