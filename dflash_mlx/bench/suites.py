"""Prompts to measure with: those that ship, public data sets, and files of the user's own."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.hub.data_file import ENDINGS, read_rows
from dflash_mlx.hub.data_sets import bring, cached_names, file_names
from dflash_mlx.system.paths import typed_path

KINDS = ("code", "arithmetic", "chat", "translation", "structured")
LONG = "long document"

_FIELDS = ("prompt", "question", "text")
"""Where the objects of a file of the user's own may have their prompt."""


@dataclass(frozen=True)
class Prompt:
    """One user turn and its kind."""

    kind: str
    text: str


@dataclass(frozen=True)
class DataSet:
    """Where a public data set lies: a hub repository, a piece of the file's name, its fields."""

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


def bundled(kinds: Sequence[str], count: int) -> list[Prompt]:
    """Return up to `count` of our own prompts of each kind.

    Raises:
        BadRequest: there is no such kind.
    """
    known = _data()["kinds"]
    if unknown := [kind for kind in kinds if kind not in known]:
        raise BadRequest(f"there are no prompts of kind {unknown[0]!r}; kinds: {', '.join(KINDS)}")
    return [Prompt(kind, text) for kind in kinds for text in known[kind][:count]]


def long_document(n_paragraphs: int) -> Prompt:
    """Return a prompt with a document of so many paragraphs."""
    values = _data()["long"]
    paragraphs = [values["paragraph"].format(number=number + 1) for number in range(n_paragraphs)]
    return Prompt(LONG, "\n\n".join([*paragraphs, values["question"]]))


def data_set(name: str, count: int) -> list[Prompt]:
    """Return `count` prompts of a public data set, or of a local file.

    Raises:
        BadRequest: no such set or file, or nothing in it that is a prompt.
        DownloadFailed: the hub cannot be reached, and the set is not in its cache.
    """
    if os.path.isfile(path := typed_path(name)):
        return _from_file(path, path.stem, _FIELDS, count)
    if name not in DATA_SETS:
        raise BadRequest(f"{name!r} is no file and no data set; data sets: {', '.join(DATA_SETS)}")
    wanted = DATA_SETS[name]
    return _from_file(_fetch(wanted), name, wanted.fields, count)


def _fetch(wanted: DataSet) -> Path:
    """Return the data set's file in the hub's cache, downloaded if it is not there."""
    for listed in (cached_names, file_names):
        names = [name for name in listed(wanted.repository) if wanted.part in name]
        found = [name for ending in ENDINGS for name in names if name.endswith(ending)]
        if found:
            return bring(wanted.repository, found[0])
    raise BadRequest(f"{wanted.repository} holds no file that can be read; give a file")


def _from_file(file: Path, kind: str, fields: Sequence[str], count: int) -> list[Prompt]:
    """Return the first `count` prompts of a file.

    Raises:
        BadRequest: it cannot be read, or holds no prompts.
    """
    needed = f"it needs a text a line, or objects with a field {' or '.join(fields)}"
    try:
        texts = [text for row in read_rows(file) if (text := _text(row, fields))]
    except DFlashError:
        raise
    except (OSError, ValueError) as error:
        raise BadRequest(f"{file} cannot be read as prompts ({error}); {needed}") from error
    if not texts:
        raise BadRequest(f"{file} holds no prompts; {needed}")
    return [Prompt(kind, text) for text in texts[:count]]


def _text(row: Any, fields: Sequence[str]) -> str:
    """Return the prompt in a row: the row itself, or its first field that is one."""
    if isinstance(row, str):
        return row.strip()
    if not isinstance(row, dict):
        return ""
    for field in fields:
        value = row.get(field)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""
