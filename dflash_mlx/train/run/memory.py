"""The memory of a training step, estimated from shapes, and the recipe that fits into it.

Must not know the samples or the target's weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dflash_mlx.errors import OutOfMemoryBudget
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.system.machine import Machine
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.run.options import TrainConfig

MAX_BATCH = 48
"""Sequences generated together. The embedded target on CPU generates 44 tokens per CPU second at
16 and 74 at 48 (48 answers, shared machine); larger shards would lose more work in a stop."""

_MIN_ANCHORS = 8
"""Fewer anchors make a step's gradient noisier than a longer run repairs: 8 blocks of size 8
still predict 56 tokens per sample."""

_RESERVE = 0.1
"""Share of the usable memory that is left to the allocator and to other programs."""


_INSTALLED_SHARE = 0.5
"""Share of the installed memory for a run with `--steps` on CPU: a desktop leaves that much."""

_CACHE_SHARE = 0.5
"""Share of the memory beside the weights for the KV caches of a batch: the rest is activations."""


def memory_bound(config: TrainConfig, machine: Machine) -> int | None:
    """Return the bytes that a run may take.

    On CPU the usable memory is what other programs leave free. With `--steps` the result must not
    depend on them, so the bound is a share of the installed memory.
    """
    if config.steps is None or machine.device == "metal" or machine.memory_bytes is None:
        return machine.usable_bytes
    return int(machine.memory_bytes * _INSTALLED_SHARE)


def batch_size_for(usable_bytes: int | None, weight_bytes: int, sequence_bytes: int) -> int:
    """Return the number of sequences to generate together: up to `MAX_BATCH`, at least 1."""
    if usable_bytes is None:
        return MAX_BATCH
    room = (usable_bytes - weight_bytes) * _CACHE_SHARE
    return int(max(1, min(MAX_BATCH, room // max(1, sequence_bytes))))


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step by use."""

    target: int
    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.target + self.weights + self.gradients + self.moments + self.activations


@dataclass(frozen=True)
class MemoryModel:
    """Sizes that determine a step's memory together with the recipe.

    `trained` parameters, `n_tokens` of the longest sample, `n_ids` of the head, `item_size` bytes
    of a number in the forward.
    """

    draft: DraftConfig
    target_bytes: int
    trained: int
    n_tokens: int
    n_ids: int
    item_size: int

    def step_memory(self, recipe: Recipe) -> StepMemory:
        """Return the bytes of a step; weights, gradients and moments are float32."""
        return StepMemory(
            target=self.target_bytes,
            weights=self.trained * (4 + self.item_size),
            gradients=self.trained * 8,  # of one sample, and the sum over the step's samples
            moments=self.trained * 8,
            activations=self._activations(recipe),
        )

    def _activations(self, recipe: Recipe) -> int:
        """Return the bytes of activations: stored layer values, features and float32 logits."""
        draft, rows = self.draft, recipe.anchors * self.draft.block_size
        layer = self._layer(rows)
        between = rows * draft.hidden_size * self.item_size
        n_layers = draft.num_hidden_layers
        layers = layer + n_layers * between if recipe.checkpointing else n_layers * layer
        features = self.n_tokens * (draft.feature_size + 2 * draft.hidden_size) * self.item_size
        logits = 3 * rows * self.n_ids * 4  # logits, their softmax and its gradient
        return layers + features + logits

    def _layer(self, rows: int) -> int:
        """Return the bytes that one layer stores for its gradient with `rows` block rows."""
        draft = self.draft
        query = draft.num_attention_heads * draft.head_dim
        key_value = draft.num_key_value_heads * draft.head_dim
        per_row = 6 * draft.hidden_size + 4 * query + 4 * key_value + 4 * draft.intermediate_size
        context = self.n_tokens * (draft.hidden_size + 4 * key_value)
        n_keys = self.n_tokens + draft.block_size
        scores = 4 * rows * draft.num_attention_heads * n_keys * 4
        return (rows * per_row + context) * self.item_size + scores


def fit_to_memory(
    step_memory: Callable[[Recipe], StepMemory], recipe: Recipe, usable_bytes: int | None
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe that fits into `usable_bytes`, and a description of each reduction.

    First fewer anchors, then gradient checkpointing. None does not bound anything. Both
    change the trained weights: anchors by much, checkpointing by rounding.

    Raises:
        OutOfMemoryBudget: the smallest recipe does not fit.
    """
    if usable_bytes is None:
        return recipe, ()
    room = int(usable_bytes * (1 - _RESERVE))
    for candidate in _candidates(recipe):
        if step_memory(candidate).total <= room:
            return candidate, _reductions(recipe, candidate)
    smallest = step_memory(candidate)
    raise OutOfMemoryBudget(
        f"training needs at least {_gigabytes(smallest.total)}, of which the target takes "
        f"{_gigabytes(smallest.target)}, and {_gigabytes(room)} are usable; choose a target with "
        "fewer bits, fewer --layers, or a smaller --max-seq-length"
    )


def _candidates(recipe: Recipe) -> Iterator[Recipe]:
    counts = [recipe.anchors]
    while counts[-1] > _MIN_ANCHORS:
        counts.append(max(_MIN_ANCHORS, counts[-1] // 2))
    for checkpointing in (recipe.checkpointing, True):
        yield from (replace(recipe, anchors=n, checkpointing=checkpointing) for n in counts)


def _reductions(requested: Recipe, found: Recipe) -> tuple[str, ...]:
    reductions = []
    if found.anchors != requested.anchors:
        reductions.append(f"{found.anchors} anchors per sample instead of {requested.anchors}")
    if found.checkpointing != requested.checkpointing:
        reductions.append("gradient checkpointing computes activations twice")
    return tuple(reductions)


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
