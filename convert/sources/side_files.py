"""Everything of a model that is not weights: what is carried, and what is written anew."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.loading.safetensors import INDEX

REPORT = "conversion.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot")
_MADE_HERE = ("config.json", "pair.json", REPORT, INDEX)
_CODE = (".py", ".pyc", ".so", ".dylib", ".sh")
_TEMPLATES = "additional_chat_templates"
SOURCE_CARD = "SOURCE_README.md"
_MOST_BYTES = 200_000_000
"""A side file larger than this is no side file."""


def side_files(source: ModelSource) -> dict[str, Path | bytes]:
    """Return the side files that go along, by their name in the output.

    Code is left behind (nothing here runs it), and so is a link that leads out of the model: a
    checkpoint must not be able to publish a file of its user's.

    Raises:
        BadCheckpoint: a link that leads nowhere.
    """
    if source.made:
        return dict(source.made)
    assert source.folder is not None
    found: dict[str, Path | bytes] = {}
    for path in sorted([*source.folder.iterdir(), *source.folder.glob(f"{_TEMPLATES}/*.jinja")]):
        name = str(path.relative_to(source.folder))
        if name.startswith(".") or name in _MADE_HERE:
            continue
        if path.suffix in (*_WEIGHTS, *_CODE) or name.endswith(".index.json"):
            continue
        if _is_inside(path, source.folder) and path.stat().st_size <= _MOST_BYTES:
            found[SOURCE_CARD if name == "README.md" else name] = path
    if SOURCE_CARD in found and (source.folder / SOURCE_CARD).is_file():
        # a converted folder carries the card of its own source
        found[SOURCE_CARD] = source.folder / SOURCE_CARD
    return found


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a file of the folder, or of the hub's store that its links point into."""
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BadCheckpoint(
            f"{path} is a link that leads nowhere; fetch the model again"
        ) from error
    store = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return real.is_file() and (real.is_relative_to(home) or real.is_relative_to(store))


def write_side_files(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """Write the files that go along into `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content)


def output_config(
    config: Mapping[str, Any], quantization: Mapping[str, Any] | None, dtype: str | None
) -> dict[str, Any]:
    """Return the `config.json` of the output: the source's, with the truth about its weights."""
    made = {
        key: value
        for key, value in config.items()
        if key not in ("quantization", "quantization_config", "auto_map", "_name_or_path")
    }
    if quantization:
        # mlx-lm reads the first name, the hub's model page the second
        made["quantization"] = made["quantization_config"] = dict(quantization)
    if dtype:
        made |= {key: dtype for key in ("dtype", "torch_dtype") if key in made} or {"dtype": dtype}
    return made


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table so that the same table always gives the same bytes."""
    text = json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
