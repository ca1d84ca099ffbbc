"""Reads training data from a file or a data set on the hub: token ids, or prompts to answer.

Must not know the target: prompts stay text here.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_mlx.errors import BadRequest
from dflash_mlx.hub.data_file import ENDINGS, read_rows
from dflash_mlx.hub.data_sets import download_file, file_names
from dflash_mlx.hub.resolve import check_hub_id
from dflash_mlx.loading.chat_template import Message
from dflash_mlx.system.foreign import reading
from dflash_mlx.system.paths import is_there, typed_path
from dflash_mlx.train.data.samples import Sample

PROMPT_FIELDS = ("prompt", "question", "instruction", "problem", "text")
_CONVERSATION_FIELDS = ("messages", "conversations", "prompt")
_ROLES = {"human": "user", "gpt": "assistant"}
"""ShareGPT's names of roles, by the names that chat templates use."""
_KIND_FIELDS = ("kind", "category")
_MAX_ROWS = 200_000
"""Rows that are read without `--samples`: more than a day of generation on any machine, and less
than 1 GB of text."""

_MAX_NAMES = 6
"""Names of files or fields that an error lists: a line of text."""


@dataclass(frozen=True)
class ChatPrompt:
    """Messages to answer, the last one a user's; `kind` is the row's own category, if any."""

    messages: tuple[Message, ...]
    kind: str = ""


@dataclass
class SourceData:
    """Content of a source: `samples` in token ids or `prompts`, never both.

    `n_without_prompt` counts the rows that contain neither.
    """

    samples: list[Sample] = field(default_factory=list)
    prompts: list[ChatPrompt] = field(default_factory=list)
    n_without_prompt: int = 0


def read_source(reference: str, limit: int | None = None) -> SourceData:
    """Return up to `limit` samples or prompts of a file, or of the data set `org/name`.

    Rows of two lists of token ids are samples. Of all other rows only the prompts are read.

    Raises:
        BadRequest: the data cannot be read, or contains no prompts.
        UnknownModel, DownloadFailed: there is no such file or data set, or the download failed.
    """
    path = typed_path(reference)
    if os.path.isdir(path):
        raise BadRequest(f"{reference} is a folder; --data needs a file, a data set, or self")
    rows = read_rows(path) if is_there(path) else _hub_rows(reference)
    found = SourceData()
    field_names: dict[str, None] = {}
    with reading(reference, "the data", "docs/train.md lists the formats", BadRequest):
        for row in rows:
            _add_row(row, found, field_names)
            if len(found.samples) + len(found.prompts) == (limit or _MAX_ROWS):
                break
    _check_source(reference, found, list(field_names))
    return found


def prompt_of_row(row: Any) -> ChatPrompt | None:
    """Return the prompt in a row: a text, a conversation, or a field with one; None without one.

    Answers in a data set come from another model and are ignored, except those of earlier turns.
    """
    if isinstance(row, str):
        return _user_prompt(row, "")
    if isinstance(row, list):
        return ChatPrompt(messages) if (messages := _through_last_user(row)) else None
    if not isinstance(row, Mapping):
        return None
    kind = next((row[name] for name in _KIND_FIELDS if isinstance(row.get(name), str)), "")
    for name in _CONVERSATION_FIELDS:
        if isinstance(row.get(name), list) and (messages := _through_last_user(row[name])):
            return ChatPrompt(messages, kind)
    for name in PROMPT_FIELDS:
        if isinstance(row.get(name), str) and (found := _user_prompt(row[name], kind)):
            return found
    return None


def _user_prompt(text: str, kind: str) -> ChatPrompt | None:
    text = _without_surrogates(text).strip()
    return ChatPrompt(({"role": "user", "content": text},), kind) if text else None


def _without_surrogates(text: str) -> str:
    """Return `text` with half surrogate pairs, which no tokenizer can encode, replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _through_last_user(turns: list[Any]) -> tuple[Message, ...]:
    """Return the messages through the last user message, () if a turn is malformed."""
    messages = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            return ()
        role, text = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if not isinstance(role, str) or not isinstance(text, str):
            return ()
        messages.append({"role": _ROLES.get(role, role), "content": _without_surrogates(text)})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return tuple(messages) if messages and messages[-1]["content"].strip() else ()


def _add_row(row: Any, found: SourceData, field_names: dict[str, None]) -> None:
    """Add one row to `found`; collect the field names of rows without a prompt."""
    if sample := _token_ids(row):
        found.samples.append(sample)
    elif prompt := prompt_of_row(row):
        found.prompts.append(prompt)
    else:
        found.n_without_prompt += 1
        if isinstance(row, dict):
            field_names.update(dict.fromkeys(str(name) for name in row))


def _check_source(reference: str, found: SourceData, field_names: list[str]) -> None:
    if found.samples and found.prompts:
        raise BadRequest(
            f"{reference} mixes token ids with text; give one file of ids, or one of prompts"
        )
    if found.samples or found.prompts:
        return
    if field_names:
        named = ", ".join(field_names[:_MAX_NAMES])
        raise BadRequest(
            f"{reference} has rows with the fields {named} and none of them is a prompt; a row "
            f"needs messages, or one of {', '.join(PROMPT_FIELDS)}"
        )
    raise BadRequest(f"{reference} contains no prompts; give a file with a prompt per row")


def _token_ids(row: Any) -> Sample | None:
    """Return a row of two lists of token ids, and optionally a kind, as a sample."""
    if not isinstance(row, list) or len(row) not in (2, 3) or not isinstance(row[0], list):
        return None
    prompt, answer = row[0], row[1]
    if not isinstance(answer, list) or not all(type(i) is int for i in (*prompt, *answer)):
        return None
    kind = row[2] if len(row) == 3 and isinstance(row[2], str) else ""
    return Sample(tuple(prompt), tuple(answer), kind)


def _hub_rows(reference: str) -> Iterator[Any]:
    """Yield the rows of a data set's files; a file is downloaded after the one before is read."""
    check_hub_id(reference)
    names = file_names(reference)
    readable = sorted(name for name in names if name.endswith(ENDINGS))
    # file names are the only sign of the split here: prefer the training split
    wanted = [name for name in readable if "train" in name] or readable
    if not wanted:
        raise BadRequest(
            f"{reference} has no file in a known format ({', '.join(names[:_MAX_NAMES])}); "
            f"--data reads {', '.join(ENDINGS)}"
        )
    for name in wanted:
        yield from read_rows(download_file(reference, name))
