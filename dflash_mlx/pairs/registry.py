"""What a nickname stands for: the cards in `pairs/`, one file per (target, draft) pair.

This file reads cards and answers look-ups. It touches neither the hub nor the weights, and a
name that is no card is None here; `hub` decides what else it may be.
"""

import difflib
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from dflash_mlx.config import PairCard
from dflash_mlx.errors import BadCheckpoint

_REQUIRED = {"nickname": str, "target": str, "family": str, "draft": str}
_OPTIONAL = {
    "target_revision": str,
    "draft_revision": str,
    "fallback": str,
    "thinking": bool,
    "block_size": int,
    "aliases": list,
    "targets": list,
    "parameters": int,
    "draft_bytes": int,
    "target_bytes": int,
    "licence": str,
    "note": str,
}
_SPELLED = {str: "a text", bool: "true or false", int: "a whole number", list: "a list of texts"}


@cache
def cards() -> tuple[PairCard, ...]:
    """Every pair that has a nickname, in the order of the nicknames.

    Raises:
        BadCheckpoint: a card of this installation is malformed, or two cards claim one name.
    """
    folder = resources.files("dflash_mlx.pairs") / "cards"
    files = sorted(
        (item for item in folder.iterdir() if item.name.endswith(".toml")),
        key=lambda item: item.name.removesuffix(".toml"),
    )
    found = tuple(read_card(item.read_text(encoding="utf-8"), item.name) for item in files)
    _refuse_shared_names(found)
    return found


def read_card(text: str, source: str) -> PairCard:
    """Return the card that the TOML `text` spells; `source` names it in errors.

    Raises:
        BadCheckpoint: a key is unknown, missing or of another type.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadCheckpoint(f"{source} is no TOML ({error}); correct the card") from error
    schema = _REQUIRED | _OPTIONAL
    if unknown := sorted(values.keys() - schema.keys()):
        raise BadCheckpoint(
            f"{source} has unknown keys {', '.join(unknown)}; a card knows {', '.join(schema)}"
        )
    if missing := sorted(_REQUIRED.keys() - values.keys()):
        raise BadCheckpoint(f"{source} lacks {', '.join(missing)}; every card needs them")
    for key, value in values.items():
        _check_type(source, key, value, schema[key])
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return PairCard(**(values | lists))


def find(name: str) -> PairCard | None:
    """The card with the nickname or alias `name`, in any case; None if there is none."""
    wanted = name.casefold()
    return next((card for card in cards() if wanted in _names(card)), None)


def card_for(repository: str) -> PairCard | None:
    """The card that names `repository` as its target, or as another build of its target."""
    wanted = repository.casefold()
    for card in cards():
        known = (card.target, *card.targets, *((card.fallback,) if card.fallback else ()))
        if any(wanted == target.casefold() for target in known):
            return card
    return None


def card_of_draft(repository: str) -> PairCard | None:
    """The first card that names `repository` as its draft; None if there is none."""
    return next((card for card in cards() if card.draft == repository), None)


def near(name: str) -> list[str]:
    """Nicknames that resemble `name`, the nearest first; at most three."""
    spelled = {alias: card.nickname for card in cards() for alias in _names(card)}
    matches = difflib.get_close_matches(name.casefold(), spelled, n=6, cutoff=0.5)
    return list(dict.fromkeys(spelled[match] for match in matches))[:3]


def _names(card: PairCard) -> tuple[str, ...]:
    return tuple(name.casefold() for name in (card.nickname, *card.aliases))


def _check_type(source: str, key: str, value: Any, kind: type) -> None:
    good = type(value) is kind
    if kind is list and good:
        good = all(isinstance(item, str) for item in value)
    if not good:
        raise BadCheckpoint(f"{source}: {key} is {value!r}; it needs {_SPELLED[kind]}")


def _refuse_shared_names(found: Iterable[PairCard]) -> None:
    owner: dict[str, str] = {}
    for card in found:
        for name in _names(card):
            if name in owner:
                raise BadCheckpoint(
                    f"the cards {owner[name]} and {card.nickname} both claim {name!r}; rename one"
                )
            owner[name] = card.nickname
