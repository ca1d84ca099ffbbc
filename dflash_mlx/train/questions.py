"""Rows of a data set into what the target is asked: messages that end with a user's turn.

Answers in a data set are somebody else's and are left aside, those of earlier turns excepted: a
draft learns to guess what its target writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.loading.tokenizer import Message

PROMPT_FIELDS = ("prompt", "question", "instruction", "problem", "text")
_TALKS = ("messages", "conversations", "prompt")
_ROLES = {"human": "user", "gpt": "assistant"}
"""ShareGPT's words for roles."""
_KINDS = ("kind", "category")


@dataclass(frozen=True)
class Question:
    """Messages that wait for an answer, the last one a user's; `kind` is what the row calls it."""

    messages: tuple[Message, ...]
    kind: str = ""


def question(row: Any) -> Question | None:
    """Return what a row asks: a text, a conversation or a field with a prompt; None if nothing."""
    if isinstance(row, str):
        return _asked(row, "")
    if isinstance(row, list):
        return Question(messages) if (messages := _up_to_the_user(row)) else None
    if not isinstance(row, Mapping):
        return None
    kind = next((row[name] for name in _KINDS if isinstance(row.get(name), str)), "")
    for name in _TALKS:
        if isinstance(row.get(name), list) and (messages := _up_to_the_user(row[name])):
            return Question(messages, kind)
    for name in PROMPT_FIELDS:
        if isinstance(row.get(name), str) and (found := _asked(row[name], kind)):
            return found
    return None


def _asked(text: str, kind: str) -> Question | None:
    text = text.strip()
    return Question(({"role": "user", "content": text},), kind) if text else None


def _up_to_the_user(turns: list[Any]) -> tuple[Message, ...]:
    """Return the messages up to the last user's, () where a turn is none or nobody asks."""
    messages = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            return ()
        role, text = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if not isinstance(role, str) or not isinstance(text, str):
            return ()
        messages.append({"role": _ROLES.get(role, role), "content": text})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return tuple(messages) if messages and messages[-1]["content"].strip() else ()
