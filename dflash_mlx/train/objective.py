"""One sample's blocks through the draft, judged: the function whose gradient a step follows."""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.draft.dflash2 import SelectingModel
from dflash_mlx.train.anchors import Blocks
from dflash_mlx.train.checkpoint import Tree
from dflash_mlx.train.denoise import denoise
from dflash_mlx.train.features import Features
from dflash_mlx.train.head import Head
from dflash_mlx.train.loss import Goal, Judged, judge, judge_choices
from dflash_mlx.train.recipe import Recipe


class Example(NamedTuple):
    """A sample's tokens [n], its blocks, and what the target made of it."""

    tokens: np.ndarray
    first: int
    blocks: Blocks
    features: Features


@dataclass(frozen=True)
class Objective:
    """Judges a draft whose weights are handed in, computing in `dtype`."""

    draft: BoundDraft
    head: Head
    recipe: Recipe
    dtype: mx.Dtype

    def __call__(self, weights: Tree, example: Example) -> tuple[mx.array, mx.array]:
        """Return the loss and which slots were right, with `weights` in the draft."""
        self.draft.model.update(tree_map(lambda array: array.astype(self.dtype), weights))
        hidden = hidden_rows(
            self.draft, example, self.dtype, checkpointing=self.recipe.checkpointing
        )
        logits, goal = self.head.project(hidden), self._goal(example)
        judged = judge(logits, goal, self.recipe)
        if isinstance(self.draft.model, SelectingModel):
            judged = self._with_selector(self.draft.model, judged, hidden, logits, example)
        return judged.loss, judged.right

    def _goal(self, example: Example) -> Goal:
        """Return the places in the head of what the example's slots should predict."""
        blocks, features = example.blocks, example.features
        labels = self.head.places(blocks.labels)
        # slot k of a block at anchor a is what the target expects behind token a + k - 1
        behind = blocks.anchors[:, None] - example.first + np.arange(blocks.labels.shape[1])
        rows = mx.array(np.where(blocks.known, behind, 0))
        teacher = self.head.places(np.array(features.teacher[rows]))
        shares = features.shares[rows] * mx.array((teacher >= 0) & blocks.known[..., None])
        return Goal(
            labels=mx.array(np.maximum(labels, 0)),
            known=mx.array((blocks.known & (labels >= 0)).astype(np.float32)),
            teacher=mx.array(np.maximum(teacher, 0)),
            shares=shares,
        )

    def _with_selector(
        self,
        model: SelectingModel,
        judged: Judged,
        hidden: mx.array,
        logits: mx.array,
        example: Example,
    ) -> Judged:
        """Add the selector's loss: which of K candidates follows the token that truly came.

        Where the right one is not among them it takes the place of the last, as speculators does.
        """
        selector, blocks, goal = model.candidate_selector, example.blocks, self._goal(example)
        count = min(selector.top_k, logits.shape[-1])
        places = mx.argpartition(mx.stop_gradient(logits), -count, axis=-1)[..., -count:]
        found = (places == goal.labels[..., None]).any(axis=-1)
        last = mx.where(found, places[..., 0], goal.labels)
        places = mx.concatenate([last[..., None], places[..., 1:]], axis=-1)
        # logits stand in the head's order, codebooks in the target's
        ids = places if self.head.ids is None else mx.array(self.head.ids)[places]
        before = mx.array(
            np.concatenate([example.tokens[blocks.anchors][:, None], blocks.labels[:, :-1]], axis=1)
        )
        follows = selector.predecessor_codebook(before) * selector.hidden_projection(hidden)
        scores = mx.take_along_axis(logits, places, axis=-1).astype(mx.float32)
        scores = scores + (selector.successor_codebook(ids) * follows[..., None, :]).sum(axis=-1)
        wanted = mx.argmax(places == goal.labels[..., None], axis=-1)
        chosen = judge_choices(scores, wanted, goal, self.recipe)
        right = (mx.argmax(scores, axis=-1) == wanted) * goal.known
        return Judged(judged.loss + self.recipe.selector * chosen, right)


def hidden_rows(
    draft: BoundDraft, example: Example, dtype: mx.Dtype, *, checkpointing: bool = False
) -> mx.array:
    """Return normed hidden rows [N, B - 1, D] of the example's blocks."""
    blocks = example.blocks
    n_rows = blocks.labels.shape[1] + 1
    embedded = draft.block_rows(example.tokens[blocks.anchors].tolist(), n_rows).astype(dtype)
    features = example.features.taps.astype(dtype)
    return denoise(draft.model, embedded, features, blocks.anchors, checkpointing=checkpointing)
