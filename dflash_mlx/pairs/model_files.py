"""The files a model folder needs, listed once: configuration, weights, tokenizer, side files.

It reads file names and JSON only; it must not know the network or weights.
"""

import importlib.util
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.draft.config_file import is_draft_config
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES
from dflash_mlx.system.foreign import quoted, reading
from dflash_mlx.system.json_file import read_json
from dflash_mlx.system.paths import is_there

CheckConfig = Callable[[dict[str, Any]], object]
"""Called with a `config.json` before weights are downloaded or read; may raise."""

CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

SIDE_FILES = ("generation_config.json", TOKENIZER_CONFIG, "chat_template.jinja")
"""Files of a target that some models lack: sampling defaults and end tokens, special tokens, chat
template. Without them a model loads and gives other text, so a missing one must be known to be
missing."""

_TOKENIZER = re.compile(
    r"tokenizer\.json|(tokenizer|tiktoken|spiece)[^/]*\.model|[^/]+\.tiktoken|tekken\.json|vocab\.txt"
)
_SLOW_TOKENIZER = ("vocab.json", "merges.txt")
"""The two files of a byte-pair tokenizer in its older format."""

_SMALL_FILE = re.compile(
    r"[^/]+\.(json|jinja|tiktoken)|(merges|vocab)\.txt|(tokenizer|tiktoken|spiece)[^/]*\.model"
)
_WEIGHT_FILE = re.compile(r"[^/\\\0]{1,240}\.safetensors")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


def is_small_file(name: str) -> bool:
    """Return whether a repository's file belongs to configuration, tokenizer or template."""
    return _SMALL_FILE.fullmatch(name) is not None


def weights_among(names: Collection[str]) -> list[str]:
    """Return the weight files that mlx-lm would load; all of them if none has its usual name."""
    flat = sorted(name for name in names if _WEIGHT_FILE.fullmatch(name))
    return [name for name in flat if name.startswith("model")] or flat


def check_folder(folder: Path, check_config: CheckConfig = lambda config: None) -> None:
    """Check the configuration of `folder`, and refuse models that need their own code.

    Raises:
        BadCheckpoint: `config.json` is missing, or a configuration is not a JSON object.
        UnsupportedModel: model or tokenizer need Python code from the repository.
    """
    file = folder / CONFIG
    if not is_there(file):
        raise BadCheckpoint(
            f"{folder} has no {CONFIG}, so it is not a model; give a folder with {CONFIG} and "
            "safetensors, or a .gguf file"
        )
    config = read_json(file)
    draft = _is_draft(config, file)
    _refuse_model_code(config, file, draft)
    if not draft:
        refuse_tokenizer_code(folder)
    check_config(config)


def refuse_tokenizer_code(folder: Path) -> None:
    """Raise UnsupportedModel if the tokenizer in `folder` needs code from its repository.

    transformers asks on stdin whether to run such code, so the folder is never opened.
    """
    for name in (TOKENIZER_CONFIG, CONFIG):
        file = folder / name
        auto_map = read_json(file).get("auto_map") if is_there(file) else None
        if name == CONFIG:  # code of the model itself has its own check
            auto_map = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else None
        if auto_map:
            raise UnsupportedModel(
                f"{file} has auto_map {quoted(auto_map)}: its tokenizer needs Python code "
                "from its repository, which is never run; use a build of the model with a "
                "tokenizer.json and without auto_map"
            )


def missing_files(folder: Path) -> list[str]:
    """Return the files that the model in `folder` needs and lacks; an empty list if complete.

    The index decides which weight files are needed, else the numbers in the shard names. A
    tokenizer is needed by targets only. `SIDE_FILES` are not included.

    Raises:
        BadCheckpoint: `config.json` or the index cannot be read.
    """
    if not is_there(folder / CONFIG):
        return [CONFIG]
    names = {file.name for file in folder.iterdir() if file.exists()}
    config = read_json(folder / CONFIG)
    missing = [name for name in needed_weights(folder) if name not in names]
    if not _is_draft(config, folder / CONFIG) and not has_tokenizer(names):
        missing.append("tokenizer.json")
    return missing


def is_complete(folder: Path) -> bool:
    """Return whether `missing_files` finds nothing; a damaged index counts as incomplete."""
    try:
        return not missing_files(folder)
    except (BadCheckpoint, OSError):
        return False


def has_tokenizer(names: Collection[str]) -> bool:
    """Return whether a folder with files of these names has a tokenizer."""
    return any(_TOKENIZER.fullmatch(name) for name in names) or all(
        name in names for name in _SLOW_TOKENIZER
    )


def missing_side_files(folder: Path) -> list[str]:
    """Return which `SIDE_FILES` a target's folder lacks; an empty list for a draft."""
    if _is_draft(read_json(folder / CONFIG), folder / CONFIG):
        return []
    return [name for name in SIDE_FILES if not is_there(folder / name)]


def needed_weights(folder: Path) -> list[str]:
    """Return the weight files of the model in `folder`, in order; some may be missing.

    The index decides, then `model.safetensors`, then the numbers in the names of shards. Other
    safetensors files belong to other models.

    Raises:
        BadCheckpoint: the index cannot be read, or names files outside the folder.
    """
    index = folder / INDEX
    names = {file.name for file in folder.iterdir() if file.exists()}
    if is_there(index):
        with reading(index, "the index of shards"):
            found = sorted(set(read_json(index)["weight_map"].values()))
        if not found or not all(
            isinstance(name, str) and _WEIGHT_FILE.fullmatch(name) for name in found
        ):
            raise BadCheckpoint(
                f"{index} has the files {quoted(found)} in weight_map; it needs names of "
                "safetensors files, download the model again"
            )
        return found
    if SINGLE_FILE in names:
        return [SINGLE_FILE]
    shards = sorted(name for name in names if _SHARD.fullmatch(name))
    if not shards:
        return weights_among(names) or [SINGLE_FILE]
    match = _SHARD.fullmatch(shards[0])
    assert match is not None
    stem, count = match[1], int(match[3])
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _is_draft(config: Mapping[str, Any], file: Path) -> bool:
    with reading(file, "the configuration"):
        return is_draft_config(config)


def _refuse_model_code(config: dict[str, Any], file: Path, draft: bool) -> None:
    needs_code = "model_file" in config
    if "auto_map" in config and not needs_code and not draft:
        needs_code = not _known_to_mlx_lm(str(config.get("model_type")))
    if needs_code:
        raise UnsupportedModel(
            f"{file} needs Python code from its repository, which is never run; use a build of the "
            "model in an architecture that mlx-lm knows"
        )


def _known_to_mlx_lm(model_type: str) -> bool:
    # the file's existence answers the question; importing mlx_lm takes most of a second
    if not re.fullmatch(r"\w{1,100}", model_type):
        return False
    spec = importlib.util.find_spec("mlx_lm")
    roots = (spec.submodule_search_locations or ()) if spec else ()
    file = f"{MLX_LM_MODULES.get(model_type, model_type)}.py"
    return any((Path(root) / "models" / file).exists() for root in roots)
