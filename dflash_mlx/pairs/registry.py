"""The known pairs: one TOML card in `cards/` per target and draft, found by nickname or hub id.

It must not know the hub or weights; a name without a card is None.
"""

import difflib
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.pairs.card import PairCard

_REQUIRED = {"nickname": str, "target": str, "family": str, "draft": str}
_OPTIONAL = {
    "target_revision": str,
    "draft_revision": str,
    "fallback": str,
    "thinking": bool,
    "block_size": int,
    "temperature": float,
    "top_p": float,
    "aliases": list,
    "targets": list,
    "parameters": int,
    "draft_bytes": int,
    "target_bytes": int,
    "licence": str,
    "note": str,
}
_TYPE_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number with a point",
    list: "a list of texts",
}


@cache
def cards() -> tuple[PairCard, ...]:
    """Return every known pair, sorted by nickname.

    Raises:
        BadCheckpoint: a card is malformed, or two cards have the same name.
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
    """Return the card in the TOML `text`; `source` names it in errors.

    Raises:
        BadCheckpoint: a key is unknown or missing, or its value has the wrong type.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadCheckpoint(f"{source} is not TOML ({error}); correct the card") from error
    schema = _REQUIRED | _OPTIONAL
    if unknown := sorted(values.keys() - schema.keys()):
        raise BadCheckpoint(
            f"{source} has unknown keys {', '.join(unknown)}; the known keys are "
            f"{', '.join(schema)}"
        )
    if missing := sorted(_REQUIRED.keys() - values.keys()):
        raise BadCheckpoint(f"{source} lacks {', '.join(missing)}; every card needs them")
    for key, value in values.items():
        _check_type(source, key, value, schema[key])
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return PairCard(**(values | lists))


def find(name: str) -> PairCard | None:
    """Return the card with the nickname or alias `name`, ignoring case, or None."""
    wanted = name.casefold()
    return next((card for card in cards() if wanted in _names(card)), None)


def card_for(repository: str) -> PairCard | None:
    """Return the card whose target, or another build of it, is `repository`, or None."""
    wanted = repository.casefold()
    for card in cards():
        known = (card.target, *card.targets, *((card.fallback,) if card.fallback else ()))
        if any(wanted == target.casefold() for target in known):
            return card
    return None


def card_of_draft(repository: str) -> PairCard | None:
    """Return the first card whose draft is `repository`, or None."""
    return next((card for card in cards() if card.draft == repository), None)


def similar_names(name: str) -> list[str]:
    """Return at most three nicknames similar to `name`, most similar first."""
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
        raise BadCheckpoint(f"{source}: {key} is {value!r}; it needs {_TYPE_NAMES[kind]}")


def _refuse_shared_names(found: Iterable[PairCard]) -> None:
    owner: dict[str, str] = {}
    for card in found:
        for name in _names(card):
            if name in owner:
                raise BadCheckpoint(
                    f"the cards {owner[name]} and {card.nickname} both have the name {name!r}; "
                    "rename one"
                )
            owner[name] = card.nickname
