"""Which target and which draft a user means: nickname, path or hub id into two references."""

import os
from dataclasses import dataclass, replace

from dflash_mlx.config import PairCard
from dflash_mlx.errors import BadRequest
from dflash_mlx.pairs import registry
from dflash_mlx.system.paths import is_there, typed_path


@dataclass(frozen=True)
class Choice:
    """References to resolve. `card` is the pair's card where one speaks of the target.

    `draft` None means plain decoding; `no_draft` then says why, unless it was asked for.
    """

    target: str
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    fallback: str | None = None
    card: PairCard | None = None
    no_draft: str | None = None


def choose(model: str, draft: str = "auto") -> Choice:
    """Return what `--model` and `--draft` stand for. A local path wins over a nickname.

    Raises:
        BadRequest: one of them is empty.
    """
    if not model.strip() or not draft.strip():
        raise BadRequest("model and draft need a name, a path or a hub id; neither may be empty")
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
    if draft == "none":
        return chosen
    if draft != "auto":
        return _with_named_draft(chosen, draft)
    beside = typed_path(model) / "draft"
    if os.path.isdir(beside):
        return replace(chosen, draft=str(beside))
    card = chosen.card
    if card and card.draft:
        return replace(chosen, draft=card.draft, draft_revision=card.draft_revision)
    return replace(chosen, no_draft=f"no draft is known for {model}; decoding plainly")


def _with_named_draft(chosen: Choice, draft: str) -> Choice:
    """Return `chosen` with the draft of that name, held to the commit that a card gives it."""
    if is_there(typed_path(draft)):
        return replace(chosen, draft=draft)
    by_name = registry.find(draft)
    owner = by_name or registry.card_of_draft(draft)
    if owner is None or owner.draft is None:
        return replace(chosen, draft=draft)
    return replace(chosen, draft=owner.draft, draft_revision=owner.draft_revision)
