"""A text as a model's own token ids, from the tokenizer in a folder."""

import tempfile
from pathlib import Path

from dflash_mlx.convert.sources.side_files import side_files, write_side_files
from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.errors import BadCheckpoint

MOST_TOKENS = 256


def sample_tokens(folder: Path, text: str) -> list[int] | None:
    """Return the ids of `text`, None where the folder has no tokenizer."""
    # transformers takes most of a second to import
    from dflash_mlx.loading.tokenizer import Tokenizer

    if not any(folder.glob("*token*")):
        return None
    try:
        ids = Tokenizer.read(folder, ()).encode(text)
    except BadCheckpoint:
        return None
    return ids[:MOST_TOKENS] or None


def source_tokens(source: ModelSource, text: str) -> list[int] | None:
    """Return the ids of `text` by the tokenizer that `source` brings."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_side_files(side_files(source), place)
        return sample_tokens(place, text)
