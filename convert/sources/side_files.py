"""Side files of a source: everything that is not weights, which the output takes over or not."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.pairs.model_files import INDEX

REPORT = "conversion.json"
SOURCE_CARD = "SOURCE_README.md"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot")
_WRITTEN_HERE = ("config.json", "pair.json", REPORT, INDEX)
_CODE = (".py", ".pyc", ".so", ".dylib", ".sh")
_TEMPLATES = "additional_chat_templates"
_MAX_BYTES = 200_000_000
"""The largest published tokenizer.json has about 35 MB; a larger file is data, not a side file."""


def side_files(source: ModelSource) -> dict[str, Path | bytes]:
    """Return the side files that the output takes over, by their names in the output.

    Code is left out, because nothing here runs it. Links that lead out of the model are left out
    too: otherwise a checkpoint could publish other files of its user.

    Raises:
        BadCheckpoint: a link is broken or circular.
    """
    if source.made:
        return dict(source.made)
    assert source.folder is not None
    found: dict[str, Path | bytes] = {}
    for path in sorted([*source.folder.iterdir(), *source.folder.glob(f"{_TEMPLATES}/*.jinja")]):
        name = str(path.relative_to(source.folder))
        if name.startswith(".") or name in _WRITTEN_HERE:
            continue
        if path.suffix.lower() in (*_WEIGHTS, *_CODE) or name.endswith(".index.json"):
            continue
        if _is_inside(path, source.folder) and path.stat().st_size <= _MAX_BYTES:
            found[SOURCE_CARD if name == "README.md" else name] = path
    if SOURCE_CARD in found and (source.folder / SOURCE_CARD).is_file():
        # a converted folder holds the card of its own source
        found[SOURCE_CARD] = source.folder / SOURCE_CARD
    return found


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a file of the folder, or of the hub's blobs that it links to."""
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BadCheckpoint(
            f"{path} is a broken or circular link; download the model again"
        ) from error
    store = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return real.is_file() and (real.is_relative_to(home) or real.is_relative_to(store))


def write_side_files(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """Write side files into `folder`.

    Raises:
        BadCheckpoint: a file of the source may not be read.
    """
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, Path):
            if not os.access(content, os.R_OK):
                raise BadCheckpoint(f"{content} cannot be read; allow reading it, or remove it")
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content)
