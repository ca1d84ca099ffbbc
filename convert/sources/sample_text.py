"""The sample text that conversions are measured on, and its token ids.

The text was written for this project: prose, code, arithmetic, a list, JSON and three languages.
"""

import tempfile
from pathlib import Path

from dflash_mlx.convert.sources.side_files import side_files, write_side_files
from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.system.foreign import reading

TEXT = """\
The lighthouse keeper counted the ships every evening and wrote the number into a grey book. On \
clear days there were twenty or more; in November, when fog lay on the water until noon, two.

def merge(left: list[int], right: list[int]) -> list[int]:
    merged = []
    while left and right:
        merged.append(left.pop(0) if left[0] <= right[0] else right.pop(0))
    return merged + left + right

A train travels 210 km at 84 km per hour: 210 / 84 = 2.5, so the journey takes two and a half hours.

1. Dig a hole twice as wide as the roots.
2. Set the tree straight and fill the hole.
3. Water it once a week.

Die Katze schläft auf dem warmen Ofen. Le boulanger ouvre sa boutique à six heures. El río baja \
crecido en primavera.

{"name": "merge", "arguments": {"left": [1, 4], "right": [2]}, "result": [1, 2, 4]}
"""

PROMPTS = (
    "Write a short paragraph about a lighthouse keeper.",
    "Write a Python function that merges two sorted lists.",
    "A train travels 210 km at 84 km per hour. How long does it take? Show the steps.",
    "List five things to take on a hike in the mountains.",
)

MAX_TOKENS = 256
"""Bounds the activations in memory: a byte tokenizer would give 822 tokens."""


def sample_tokens(folder: Path, text: str) -> list[int] | None:
    """Return the token ids of `text`; None if the folder has no usable tokenizer."""
    # transformers takes most of a second to import
    from dflash_mlx.loading.tokenizer import Tokenizer

    if not any(folder.glob("*token*")):
        return None
    try:
        with reading(folder, "the tokenizer"):
            ids = Tokenizer.read(folder, ()).encode(text)
    except (BadCheckpoint, UnsupportedModel):
        return None
    return ids[:MAX_TOKENS] or None


def source_tokens(source: ModelSource, text: str) -> list[int] | None:
    """Return the token ids of `text` by the source's tokenizer; None if it has none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_side_files(side_files(source), folder)
        return sample_tokens(folder, text)
