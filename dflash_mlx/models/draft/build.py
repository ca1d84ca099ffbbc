"""Which classes run which kind of draft."""

from collections.abc import Collection

from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.dflash import BoundDraft, DraftModel
from dflash_mlx.models.draft.dflash2 import SelectingDraft, SelectingModel
from dflash_mlx.models.protocols import Target


def draft_model(config: DraftConfig, names: Collection[str | None]) -> DraftModel:
    """Return an empty model for a draft whose tensors have these `runtime_name`s."""
    kind = SelectingModel if config.selector else DraftModel
    return kind(config, "embed_tokens.weight" in names, "lm_head.weight" in names)


def bind(model: DraftModel, target: Target) -> BoundDraft:
    """Return `model` with the target whose embedding and head it borrows."""
    if isinstance(model, SelectingModel):
        return SelectingDraft(model, target)
    return BoundDraft(model, target)
