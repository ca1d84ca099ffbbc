"""Checks that a folder is a complete model that needs no code of its own.

It reads file names and JSON files only: no weights, no network.
"""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.draft.config_file import is_draft_config
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES
from dflash_mlx.system.json_file import read_json
from dflash_mlx.system.paths import is_there

CheckConfig = Callable[[dict[str, Any]], object]
"""Called with a `config.json` before weights are downloaded or read; may raise."""

_SHARD = re.compile(r".+-(\d{5})-of-(\d{5})\.safetensors")


def check_folder(folder: Path, check_config: CheckConfig = lambda config: None) -> None:
    """Read the `config.json` of `folder`, refuse models that need their own code, then check it.

    Raises:
        BadCheckpoint: `config.json` is missing or not a JSON object.
        UnsupportedModel: the model needs Python code from its repository.
    """
    file = folder / "config.json"
    if not is_there(file):
        raise BadCheckpoint(
            f"{folder} has no config.json, so it is not a model; give a folder with "
            "config.json and safetensors, or a .gguf file"
        )
    config = read_json(file)
    _refuse_remote_code(config, file)
    check_config(config)


def is_complete(folder: Path) -> bool:
    """Return whether every weight file that the index or shard names announce is present."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError):
            return False
        return bool(names) and all((folder / name).exists() for name in names)
    names = {file.name for file in folder.glob("*.safetensors") if file.exists()}
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    return bool(names) and all(len(shards) == int(shard[2]) for shard in shards)


def _refuse_remote_code(config: dict[str, Any], file: Path) -> None:
    needs_code = "model_file" in config
    if "auto_map" in config and not needs_code and not is_draft_config(config):
        needs_code = not _known_to_mlx_lm(str(config.get("model_type")))
    if needs_code:
        raise UnsupportedModel(
            f"{file} needs Python code from its repository, which is never run; use a build of the "
            "model in an architecture that mlx-lm knows"
        )


def _known_to_mlx_lm(model_type: str) -> bool:
    # the file's existence answers the question; importing mlx_lm takes most of a second
    spec = importlib.util.find_spec("mlx_lm")
    roots = (spec.submodule_search_locations or ()) if spec else ()
    file = f"{MLX_LM_MODULES.get(model_type, model_type)}.py"
    return any((Path(root) / "models" / file).exists() for root in roots)
