"""Benchmark prompts: the prompts of the package, public data sets, and the user's files.

It must not know models or tokenizers.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadRequest
from dflash_mlx.hub.data_file import ENDINGS, read_rows
from dflash_mlx.hub.data_sets import cached_names, download_file, file_names
from dflash_mlx.system.foreign import reading
from dflash_mlx.system.paths import typed_path

KINDS = ("chat", "code", "arithmetic", "lists", "translation", "structured")
LONG = "long document"

_FIELDS = ("prompt", "question", "text")
"""Fields of the objects in a user's file that may contain the prompt, in order of preference."""


_MAX_CHARACTERS = 2**23
"""Longest prompt: 8 million characters, about two million tokens, above every context length."""


@dataclass(frozen=True)
class BenchPrompt:
    """One user turn and its kind."""

    kind: str
    text: str


@dataclass(frozen=True)
class DataSet:
    """A public data set: hub repository, part of the file's name, and fields of the prompt."""

    repository: str
    part: str
    fields: tuple[str, ...]


DATA_SETS: Mapping[str, DataSet] = {
    "gsm8k": DataSet("openai/gsm8k", "main/test", ("question",)),
    "humaneval": DataSet("openai/openai_humaneval", "test", ("prompt",)),
    "mbpp": DataSet("google-research-datasets/mbpp", "full/test", ("text", "prompt")),
    "mt-bench": DataSet("HuggingFaceH4/mt_bench_prompts", "", ("turns", "prompt")),
    "math-500": DataSet("HuggingFaceH4/MATH-500", "test", ("problem",)),
}


@cache
def _data() -> Mapping[str, Any]:
    file = resources.files("dflash_mlx.bench") / "prompts.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def bundled(kinds: Sequence[str], count: int) -> list[BenchPrompt]:
    """Return up to `count` prompts of the package of each kind.

    Raises:
        BadRequest: a kind does not exist.
    """
    known = _data()["kinds"]
    if unknown := [kind for kind in kinds if kind not in known]:
        raise BadRequest(
            f"prompt kind {unknown[0]!r} does not exist; choose one of {', '.join(KINDS)}"
        )
    return [BenchPrompt(kind, text) for kind in kinds for text in known[kind][:count]]


def long_document(n_paragraphs: int) -> BenchPrompt:
    """Return a prompt with a document of `n_paragraphs` paragraphs."""
    values = _data()["long"]
    paragraphs = [values["paragraph"].format(number=number + 1) for number in range(n_paragraphs)]
    return BenchPrompt(LONG, "\n\n".join([*paragraphs, values["question"]]))


def data_set(name: str, count: int) -> list[BenchPrompt]:
    """Return `count` prompts of a public data set, or of a local file.

    Raises:
        BadRequest: the set or file does not exist, or contains no prompt.
        DownloadFailed: the hub cannot be reached and the set is not cached.
    """
    if os.path.isfile(path := typed_path(name)):
        return _from_file(path, path.stem, _FIELDS, count)
    if name not in DATA_SETS:
        raise BadRequest(
            f"{name!r} is neither a file nor a data set; data sets: {', '.join(DATA_SETS)}"
        )
    wanted = DATA_SETS[name]
    return _from_file(_fetch(wanted), name, wanted.fields, count)


def _fetch(wanted: DataSet) -> Path:
    """Return the data set's file in the hub cache; download it if it is missing."""
    for listed in (cached_names, file_names):
        names = [name for name in listed(wanted.repository) if wanted.part in name]
        found = [name for ending in ENDINGS for name in names if name.endswith(ending)]
        if found:
            return download_file(wanted.repository, found[0])
    raise BadRequest(f"{wanted.repository} contains no file of a known format; name a local file")


def _from_file(file: Path, kind: str, fields: Sequence[str], count: int) -> list[BenchPrompt]:
    """Return the first `count` prompts of a file.

    Raises:
        BadRequest: it cannot be read, or contains no prompts.
    """
    needed = f"it needs one text per line, or objects with a field {' or '.join(fields)}"
    with reading(file, "prompts", needed, BadRequest):
        found = (text for row in read_rows(file) if (text := _text(row, fields)))
        texts = list(islice(found, max(count, 1)))
    if not texts:
        raise BadRequest(f"{file} contains no prompts; {needed}")
    return [BenchPrompt(kind, text) for text in texts[:count]]


def _text(row: Any, fields: Sequence[str]) -> str:
    """Return the prompt of a row: the row itself, or its first field that is a text."""
    if isinstance(row, dict):
        values = (row.get(field) for field in fields)
        firsts = (value[0] if isinstance(value, list) and value else value for value in values)
        row = next((text for text in firsts if isinstance(text, str) and text.strip()), "")
    if not isinstance(row, str):
        return ""
    if len(row) > _MAX_CHARACTERS:
        raise ValueError(f"a prompt has {len(row)} characters, more than {_MAX_CHARACTERS}")
    row.encode("utf-8")  # a lone surrogate, which no tokenizer accepts, fails here
    return row.strip()
