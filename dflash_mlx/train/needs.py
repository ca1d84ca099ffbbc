"""The memory of a training step, estimated from shapes, and what gives way where it is short.

Letters: R = N * B block rows, S context rows, D hidden size, F width of the taps, V ids of the
head. What a layer keeps for its gradient dominates: attention scores over context and block in
float32, and the rows between its products. The head's logits in float32 come on top.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dflash_mlx.errors import OutOfMemoryBudget
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.train.recipe import Recipe

_LEAST_ANCHORS = 8
_SPARE = 0.1
"""Share of memory that is left to everything else."""


@dataclass(frozen=True)
class Needs:
    """Bytes of a training step."""

    target: int
    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.target + self.weights + self.gradients + self.moments + self.activations


@dataclass(frozen=True)
class Scale:
    """What a step's memory depends on beside the recipe.

    `trained` parameters, `rows` of the longest sample, `n_ids` of the head, `width` bytes of a
    number as computed.
    """

    draft: DraftConfig
    target_bytes: int
    trained: int
    rows: int
    n_ids: int
    width: int

    def needs(self, recipe: Recipe) -> Needs:
        """Return the bytes of a step; weights, gradients and moments are float32."""
        return Needs(
            target=self.target_bytes,
            weights=self.trained * (4 + self.width),
            gradients=self.trained * 8,  # of one sample, and the sum of the step's
            moments=self.trained * 8,
            activations=self._activations(recipe),
        )

    def _activations(self, recipe: Recipe) -> int:
        draft, rows = self.draft, recipe.anchors * self.draft.block_size
        layer = self._layer(rows)
        between = rows * draft.hidden_size * self.width
        n_layers = draft.num_hidden_layers
        layers = layer + n_layers * between if recipe.checkpointing else n_layers * layer
        taps = self.rows * (draft.feature_size + 2 * draft.hidden_size) * self.width
        logits = 3 * rows * self.n_ids * 4
        return layers + taps + logits

    def _layer(self, rows: int) -> int:
        """Return what one layer keeps for its gradient."""
        draft = self.draft
        own = draft.num_attention_heads * draft.head_dim
        shared = draft.num_key_value_heads * draft.head_dim
        per_row = 6 * draft.hidden_size + 4 * own + 4 * shared + 4 * draft.intermediate_size
        context = self.rows * (draft.hidden_size + 4 * shared)
        scores = 4 * rows * draft.num_attention_heads * (self.rows + draft.block_size) * 4
        return (rows * per_row + context) * self.width + scores


def fitting(
    needs: Callable[[Recipe], Needs], recipe: Recipe, usable_bytes: int | None
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe that fits into `usable_bytes`, and what gave way for it.

    Anchors give way first, then time: with checkpointing a layer's inner values are computed
    twice. None bounds nothing.

    Raises:
        OutOfMemoryBudget: nothing that could give way is enough.
    """
    if usable_bytes is None:
        return recipe, ()
    room = int(usable_bytes * (1 - _SPARE))
    for candidate in _candidates(recipe):
        if needs(candidate).total <= room:
            return candidate, _gave_way(recipe, candidate)
    least = needs(candidate)
    raise OutOfMemoryBudget(
        f"training needs {_gb(least.total)} at least, {_gb(least.target)} of it for the target, "
        f"and {_gb(room)} can be had; take a target in fewer bits, fewer --layers, or a smaller "
        "--max-seq-length"
    )


def _candidates(recipe: Recipe) -> Iterator[Recipe]:
    counts = [recipe.anchors]
    while counts[-1] > _LEAST_ANCHORS:
        counts.append(max(_LEAST_ANCHORS, counts[-1] // 2))
    for checkpointing in (recipe.checkpointing, True):
        yield from (replace(recipe, anchors=n, checkpointing=checkpointing) for n in counts)


def _gave_way(asked: Recipe, found: Recipe) -> tuple[str, ...]:
    said = []
    if found.anchors != asked.anchors:
        said.append(f"{found.anchors} anchors a sample instead of {asked.anchors}")
    if found.checkpointing != asked.checkpointing:
        said.append("layers are computed twice to keep less of them")
    return tuple(said)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
