"""Data to train on, from a file or a data set on the hub: token ids, or questions to answer.

Two forms are told apart by what is inside. Pairs of token-id lists are the target's own words
already and become samples as they are. Everything else is read for its questions, to which the
target will write the answers.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.hub.data_file import ENDINGS, read_rows
from dflash_mlx.hub.data_sets import download_file, file_names
from dflash_mlx.hub.resolve import check_hub_id
from dflash_mlx.system.paths import is_there, typed_path
from dflash_mlx.train.questions import PROMPT_FIELDS, Question, question
from dflash_mlx.train.samples import Sample

_SHOWN = 6


@dataclass
class Found:
    """What a source holds: `samples` in token ids, or `questions`, never both."""

    samples: list[Sample] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    empty: int = 0


def read(reference: str, limit: int | None = None) -> Found:
    """Return up to `limit` samples or questions of a file, or of the data set `org/name`.

    Raises:
        BadRequest: it cannot be read, or holds neither; the message says what it needs.
        UnknownModel, DownloadFailed: no such file or data set, or it could not be brought here.
    """
    path = typed_path(reference)
    if os.path.isdir(path):
        raise BadRequest(f"{reference} is a folder; --data needs a file, a data set, or self")
    rows = read_rows(path) if is_there(path) else _hub_rows(reference)
    found = Found()
    others: dict[str, None] = {}
    try:
        for row in rows:
            _take(row, found, others)
            if len(found.samples) + len(found.questions) == limit:
                break
    except DFlashError:
        raise
    except (OSError, ValueError) as error:
        raise BadRequest(
            f"{reference} cannot be read as data ({error}); see docs/train.md"
        ) from error
    _refuse_nothing(reference, found, list(others))
    return found


def _take(row: Any, found: Found, others: dict[str, None]) -> None:
    """Sort one row into what was found; `others` collects the fields of rows that ask nothing."""
    if sample := _ids(row):
        found.samples.append(sample)
    elif asked := question(row):
        found.questions.append(asked)
    else:
        found.empty += 1
        if isinstance(row, dict):
            others.update(dict.fromkeys(str(name) for name in row))


def _refuse_nothing(reference: str, found: Found, others: list[str]) -> None:
    if found.samples and found.questions:
        raise BadRequest(
            f"{reference} mixes token ids with text; give one file of ids, or one of prompts"
        )
    if found.samples or found.questions:
        return
    if others:
        named = ", ".join(others[:_SHOWN])
        raise BadRequest(
            f"{reference} has rows with {named} and no prompt among them; a row needs messages, "
            f"or one of {', '.join(PROMPT_FIELDS)}"
        )
    raise BadRequest(f"{reference} holds no prompts; it is empty, or every row is")


def _ids(row: Any) -> Sample | None:
    """Return a row of two lists of token ids as a sample."""
    if not isinstance(row, list) or len(row) not in (2, 3) or not isinstance(row[0], list):
        return None
    prompt, answer = row[0], row[1]
    if not isinstance(answer, list) or not all(type(i) is int for i in (*prompt, *answer)):
        return None
    kind = row[2] if len(row) == 3 and isinstance(row[2], str) else ""
    return Sample(tuple(prompt), tuple(answer), kind)


def _hub_rows(reference: str) -> Iterator[Any]:
    """Yield the rows of a data set's files, each brought when the one before has been read."""
    check_hub_id(reference)
    names = file_names(reference)
    readable = sorted(name for name in names if name.endswith(ENDINGS))
    # splits are named in cards only; where file names tell them apart too, the others are for tests
    wanted = [name for name in readable if "train" in name] or readable
    if not wanted:
        raise BadRequest(
            f"{reference} has no file that can be read ({', '.join(names[:_SHOWN])}); it needs "
            f"{', '.join(ENDINGS)}"
        )
    for name in wanted:
        yield from read_rows(download_file(reference, name))
