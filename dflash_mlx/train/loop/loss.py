"""The training loss of N blocks of size B: cross entropy and distillation, weighted by position.

V is the number of ids of the head, K that of stored teacher tokens. Must not know optimisers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.draft.dflash2 import SelectingModel
from dflash_mlx.train.loop.checkpoint import ArrayTree
from dflash_mlx.train.loop.features import TargetFeatures
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.model.forward import Blocks, TrainingHead, denoise


class TrainingExample(NamedTuple):
    """A sample's tokens [n], the position of its first anchor, its blocks, and its features."""

    tokens: np.ndarray
    first: int
    blocks: Blocks
    features: TargetFeatures


class LossTargets(NamedTuple):
    """The targets of N blocks, as indices into the head.

    `labels` [N, B - 1] with `known` [N, B - 1], which is 0 where there is no token or the head
    lacks it; `teacher` [N, B - 1, K] and `probabilities` [N, B - 1, K], which are 0 where the
    head lacks the token.
    """

    labels: mx.array
    known: mx.array
    teacher: mx.array
    probabilities: mx.array


class BlockLoss(NamedTuple):
    """The scalar loss, and whether each position's most likely token is right, [N, B - 1]."""

    loss: mx.array
    right: mx.array


def block_loss(logits: mx.array, targets: LossTargets, recipe: Recipe) -> BlockLoss:
    """Return the weighted loss of `logits` [N, B - 1, V]."""
    logits = logits.astype(mx.float32)
    normalizer = mx.logsumexp(logits, axis=-1)
    cross_entropy = normalizer - _at(logits, targets.labels[..., None])[..., 0]
    distillation = targets.probabilities.sum(axis=-1) * normalizer - (
        targets.probabilities * _at(logits, targets.teacher)
    ).sum(axis=-1)
    share = recipe.distillation
    loss = (1 - share) * targets.known * cross_entropy + share * distillation
    weights = position_weights(mx.stop_gradient(cross_entropy), targets.known, recipe)
    total = (weights * loss).sum() / mx.maximum(weights.sum(), 1e-6)
    right = (mx.argmax(logits, axis=-1) == targets.labels) * targets.known
    return BlockLoss(total, right)


def position_weights(cross_entropy: mx.array, known: mx.array, recipe: Recipe) -> mx.array:
    """Return the weight [N, B - 1] of every position, 0 where its token is not known.

    Fixed: exp(-(k - 1) / decay). D-PACE (speculators 0.9.0): the contribution of position k to
    the expected accepted length, sum over j >= k of prod over i <= j of s_i, with
    s = (1 - smoothing) exp(-cross entropy) + smoothing.
    """
    n_positions = cross_entropy.shape[-1]
    if recipe.weighting == "fixed":
        return known * mx.array(np.exp(-np.arange(n_positions) / recipe.position_decay), mx.float32)
    chance = (1 - recipe.smoothing) * mx.exp(-cross_entropy) + recipe.smoothing
    reached = mx.cumprod(mx.where(known > 0, chance, 1), axis=-1) * known
    return known * mx.cumsum(reached, axis=-1, reverse=True)


def selector_loss(
    scores: mx.array, wanted: mx.array, targets: LossTargets, recipe: Recipe
) -> mx.array:
    """Return the loss of a selector's `scores` [N, B - 1, K]; candidate `wanted` is right."""
    right = _at(scores, wanted[..., None])[..., 0]
    cross_entropy = mx.logsumexp(scores, axis=-1) - right
    weights = position_weights(mx.stop_gradient(cross_entropy), targets.known, recipe)
    return (weights * cross_entropy).sum() / mx.maximum(weights.sum(), 1e-6)


def accepted_by_position(right: np.ndarray) -> np.ndarray:
    """Return the share of blocks [B - 1] in which all positions up to each are right.

    The sum plus 1 is the tokens per round over these anchors.
    """
    accepted: np.ndarray = np.cumprod(right, axis=1).mean(axis=0)
    return accepted


def _at(values: mx.array, indices: mx.array) -> mx.array:
    return mx.take_along_axis(values, indices, axis=-1)


@dataclass(frozen=True)
class Objective:
    """The loss as a function of the draft's weights, computed in `dtype`."""

    draft: BoundDraft
    head: TrainingHead
    recipe: Recipe
    dtype: mx.Dtype

    def __call__(self, weights: ArrayTree, example: TrainingExample) -> tuple[mx.array, mx.array]:
        """Return the loss of the draft with `weights`, and which positions are right."""
        self.draft.model.update(tree_map(lambda array: array.astype(self.dtype), weights))
        hidden = block_hidden(
            self.draft, example, self.dtype, checkpointing=self.recipe.checkpointing
        )
        logits, targets = self.head.project(hidden), self._targets(example)
        found = block_loss(logits, targets, self.recipe)
        if isinstance(self.draft.model, SelectingModel):
            found = self._with_selector(self.draft.model, found, hidden, logits, example)
        return found.loss, found.right

    def _targets(self, example: TrainingExample) -> LossTargets:
        blocks, features = example.blocks, example.features
        labels = self.head.indices(blocks.labels)
        # position k of a block with anchor a is predicted by the target after token a + k - 1
        before = blocks.anchors[:, None] - example.first + np.arange(blocks.labels.shape[1])
        rows = mx.array(np.where(blocks.known, before, 0))
        teacher = self.head.indices(np.array(features.teacher[rows]))
        in_head = mx.array((teacher >= 0) & blocks.known[..., None])
        return LossTargets(
            labels=mx.array(np.maximum(labels, 0)),
            known=mx.array((blocks.known & (labels >= 0)).astype(np.float32)),
            teacher=mx.array(np.maximum(teacher, 0)),
            probabilities=features.probabilities[rows] * in_head,
        )

    def _with_selector(
        self,
        model: SelectingModel,
        found: BlockLoss,
        hidden: mx.array,
        logits: mx.array,
        example: TrainingExample,
    ) -> BlockLoss:
        """Add the selector's loss: which of K candidates follows the token before it.

        If the right token is not among the candidates it replaces the last one, as in speculators.
        """
        selector, blocks, targets = model.candidate_selector, example.blocks, self._targets(example)
        count = min(selector.top_k, logits.shape[-1])
        candidates = mx.argpartition(mx.stop_gradient(logits), -count, axis=-1)[..., -count:]
        present = (candidates == targets.labels[..., None]).any(axis=-1)
        last = mx.where(present, candidates[..., 0], targets.labels)
        candidates = mx.concatenate([last[..., None], candidates[..., 1:]], axis=-1)
        # logits are in the order of the head, codebooks in the order of the target's vocabulary
        ids = candidates if self.head.ids is None else mx.array(self.head.ids)[candidates]
        before = mx.array(
            np.concatenate([example.tokens[blocks.anchors][:, None], blocks.labels[:, :-1]], axis=1)
        )
        follows = selector.predecessor_codebook(before) * selector.hidden_projection(hidden)
        scores = mx.take_along_axis(logits, candidates, axis=-1).astype(mx.float32)
        scores = scores + (selector.successor_codebook(ids) * follows[..., None, :]).sum(axis=-1)
        wanted = mx.argmax(candidates == targets.labels[..., None], axis=-1)
        extra = selector_loss(scores, wanted, targets, self.recipe)
        right = (mx.argmax(scores, axis=-1) == wanted) * targets.known
        return BlockLoss(found.loss + self.recipe.selector_weight * extra, right)


def block_hidden(
    draft: BoundDraft, example: TrainingExample, dtype: mx.Dtype, *, checkpointing: bool = False
) -> mx.array:
    """Return normed hidden states [N, B - 1, D] of the example's blocks."""
    blocks = example.blocks
    block_size = blocks.labels.shape[1] + 1
    embedded = draft.block_rows(example.tokens[blocks.anchors].tolist(), block_size).astype(dtype)
    features = example.features.hidden.astype(dtype)
    return denoise(draft.model, embedded, features, blocks.anchors, checkpointing=checkpointing)
