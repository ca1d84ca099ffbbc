"""A draft configuration into an empty model, and a model with its target into a draft."""

from collections.abc import Collection

from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.dflash import BoundDraft, DraftModel
from dflash_mlx.models.draft.dflash2 import SelectingDraft, SelectingModel
from dflash_mlx.models.protocols import Target


def draft_model(config: DraftConfig, names: Collection[str | None]) -> DraftModel:
    """Return a model without weights for a draft whose tensors have the runtime `names`.

    An embedding or a head among the names becomes the draft's own; others are the target's.
    """
    kind = SelectingModel if config.selector else DraftModel
    return kind(config, "embed_tokens.weight" in names, "lm_head.weight" in names)


def bind(model: DraftModel, target: Target) -> BoundDraft:
    """Return `model` bound to the target whose embedding and head it shares."""
    if isinstance(model, SelectingModel):
        return SelectingDraft(model, target)
    return BoundDraft(model, target)
