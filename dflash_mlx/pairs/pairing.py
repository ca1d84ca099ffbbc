"""Turns `--model` and `--draft` (nickname, path or hub id) into two references."""

import os
from dataclasses import dataclass, replace

from dflash_mlx.errors import BadRequest
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.system.paths import is_there, typed_path


@dataclass(frozen=True)
class Choice:
    """The references of a target and a draft. `card` is the known pair of the target, if any.

    `draft` None means no draft model; `no_draft` has the reason unless the user requested it.
    `copies` means that draft tokens are copied from the context.
    """

    target: str
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    fallback: str | None = None
    card: PairCard | None = None
    no_draft: str | None = None
    copies: bool = False


def choose(model: str, draft: str = "auto") -> Choice:
    """Return the references of `--model` and `--draft`. A local path wins over a nickname.

    Raises:
        BadRequest: a name is empty.
    """
    if not model.strip() or not draft.strip():
        raise BadRequest("--model or --draft is empty; it needs a nickname, a path or a hub id")
    local = is_there(typed_path(model))
    card = None if local else registry.find(model) or registry.card_for(model)
    named = card is not None and registry.find(model) is card
    target = card.target if card and named else model
    chosen = Choice(
        target=target,
        target_revision=card.target_revision if card and target == card.target else None,
        fallback=card.fallback if card and named else None,
        card=card,
    )
    return _with_draft(chosen, draft, model)


def _with_draft(chosen: Choice, draft: str, model: str) -> Choice:
    if draft in ("none", "copy"):
        return replace(chosen, copies=draft == "copy")
    if draft != "auto":
        return _with_named_draft(chosen, draft)
    beside = typed_path(model) / "draft"
    if os.path.isdir(beside):
        return replace(chosen, draft=str(beside))
    card = chosen.card
    if card and card.draft:
        return replace(chosen, draft=card.draft, draft_revision=card.draft_revision)
    return replace(chosen, no_draft=f"no draft is known for {model}; using plain decoding")


def _with_named_draft(chosen: Choice, draft: str) -> Choice:
    """Return `chosen` with the draft of that name, at the commit that a card states for it."""
    if is_there(typed_path(draft)):
        return replace(chosen, draft=draft)
    by_name = registry.find(draft)
    owner = by_name or registry.card_of_draft(draft)
    if owner is None or owner.draft is None:
        return replace(chosen, draft=draft)
    return replace(chosen, draft=owner.draft, draft_revision=owner.draft_revision)
