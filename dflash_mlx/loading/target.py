"""A folder or a `.gguf` file into a target in memory, with its tokenizer and defaults.

Weights and modules are mlx-lm's. It must not know drafts, the network or requests.
"""

import importlib
import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.nn as nn

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadCheckpoint, BadRequest, UnsupportedModel
from dflash_mlx.gguf.read import read_gguf
from dflash_mlx.gguf.tokenizer import build_tokenizer
from dflash_mlx.loading.arguments import check_argument_types
from dflash_mlx.loading.compatibility import check_target_config
from dflash_mlx.loading.compute import Compute, check_compute, settle_weights
from dflash_mlx.loading.generation import generation_defaults
from dflash_mlx.loading.safetensors import read_checkpoint
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.loading.weights import fill
from dflash_mlx.models.targets.config_file import TargetConfig, read_target_config
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.families import family_of
from dflash_mlx.pairs.model_files import missing_files
from dflash_mlx.system.foreign import reading, reason, shorten
from dflash_mlx.system.json_file import read_json

_LOG = logging.getLogger("dflash_mlx")


@dataclass(frozen=True)
class LoadedTarget:
    """A target with the tokenizer, sampling defaults and configuration of its folder.

    `notices` has a line for each value in the folder that is not used as it is.
    """

    target: DecoderTarget
    tokenizer: Tokenizer
    sampling: SamplingConfig
    config: Mapping[str, Any]
    notices: tuple[str, ...] = ()


def load_target(path: Path, compute: Compute) -> LoadedTarget:
    """Return the target in a folder or `.gguf` file, in memory.

    Raises:
        BadCheckpoint: files are missing, truncated or contradict their configuration.
        UnsupportedModel: the family or format does not run here, or the folder holds a draft.
    """
    if path.is_file():
        return _load_gguf(path, compute)
    config = check_target_config(read_json(path / "config.json"), str(path))
    _check_files(path)
    model = _read_model(path, config)
    target = _make_target(model, config, path, compute)
    defaults = generation_defaults(path, config.values, config.text)
    tokenizer = Tokenizer.read(path, defaults.eos_token_ids)
    return LoadedTarget(target, tokenizer, defaults.sampling, config.values, defaults.notices)


def _check_files(path: Path) -> None:
    """Refuse a folder that lacks files: transformers makes up an empty tokenizer."""
    if missing := missing_files(path):
        raise BadCheckpoint(
            f"{path} lacks {shorten(', '.join(missing))}"
            f"{', so it has no tokenizer' if 'tokenizer.json' in missing else ''}; download the "
            "model again"
        )


def _make_target(
    model: nn.Module, config: TargetConfig, path: Path, compute: Compute
) -> DecoderTarget:
    """Return the target of a loaded model, its weights in memory."""
    target = family_of(str(config.values["model_type"]), str(path))(model, config.context_length)
    check_compute(model, compute, str(path))
    settle_weights(model, compute)
    with reading(path, "the model"):
        # the first forward pass, which is not evaluated: impossible values show here
        shape = target.shape
    _LOG.info("%s: %s", path, shape)
    return target


def _read_model(path: Path, config: TargetConfig) -> nn.Module:
    """Return mlx-lm's model of a folder; its weights are read when used.

    mlx-lm reads every `model*.safetensors` of a folder. It gets a temporary folder that holds the
    checkpoint's own files only. MLX keeps files open, so the folder can go when this returns.
    """
    from mlx_lm.utils import load_model

    check_argument_types(config.values["model_type"], config.text, f"{path}/config.json")
    checkpoint = read_checkpoint(path)
    names = {name for tensors in checkpoint.values() for name in tensors}
    _check_depth(config, len(names), path)
    values = dict(config.values)
    if config.text is config.values and "tie_word_embeddings" not in values:
        # mlx-lm ties by default and drops the head, transformers does not
        values["tie_word_embeddings"] = "lm_head.weight" not in names
    try:
        temporary = tempfile.TemporaryDirectory(prefix="dflash-mlx-")
    except OSError as error:
        raise BadRequest(
            f"no temporary folder can be written ({reason(error)}); set TMPDIR to one"
        ) from error
    with temporary as staged:
        folder = Path(staged)
        (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
        for number, name in enumerate(checkpoint):
            (folder / f"model-{number:05}.safetensors").symlink_to((path / name).resolve())
        if (settings := path / "hf_quant_config.json").is_file():
            (folder / settings.name).symlink_to(settings.resolve())
        with reading(path, "the model"):
            model, _ = load_model(folder, lazy=True)
    return model


def _load_gguf(path: Path, compute: Compute) -> LoadedTarget:
    if path.suffix.lower() != ".gguf":
        raise UnsupportedModel(f"{path} is not a model; give a folder or a .gguf file")
    read = read_gguf(path, outline=compute.outline)
    config = read_target_config(read.config, str(path))
    module = importlib.import_module(f"mlx_lm.models.{config.values['model_type']}")
    with reading(path, "the model"):
        model = module.Model(module.ModelArgs.from_dict(config.values))
    fill(model, read.weights, str(path), read.config.get("quantization"))
    read.weights.clear()
    target = _make_target(model, config, path, compute)
    with reading(path, "the tokenizer"):
        tokenizer = Tokenizer(build_tokenizer(read.tokenizer), read.tokenizer.eos_token_ids)
    return LoadedTarget(target, tokenizer, SamplingConfig(), config.values)


def _check_depth(config: TargetConfig, n_tensors: int, path: Path) -> None:
    """Refuse more layers than tensors: mlx-lm builds every layer before it looks at a weight."""
    layers = config.text.get("num_hidden_layers", config.text.get("num_layers", 0))
    if isinstance(layers, int) and layers > n_tensors:
        raise BadCheckpoint(
            f"{path}/config.json has {layers} layers and the weights hold {n_tensors} tensors; "
            "download the model again"
        )
