"""What a draft is trained against: the tokens that came, and what the target thought of them.

Letters: N blocks, B rows of a block, V ids of the head in use, K ids kept of the target's
distribution. Slot k (1 to B - 1) is the k-th token behind the anchor.
"""

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from dflash_mlx.train.recipe import Recipe


class Goal(NamedTuple):
    """What the rows of N blocks should predict, as places in the head in use.

    `labels` [N, B - 1] with `known` [N, B - 1] 0 where there is none or the head lacks it;
    `teacher` [N, B - 1, K] places and `shares` [N, B - 1, K] the target's probabilities of
    them, 0 where the head lacks one.
    """

    labels: mx.array
    known: mx.array
    teacher: mx.array
    shares: mx.array


class Judged(NamedTuple):
    """The loss, a scalar to minimise, and whether each slot's best id was right, [N, B - 1]."""

    loss: mx.array
    right: mx.array


def judge(logits: mx.array, goal: Goal, recipe: Recipe) -> Judged:
    """Return the weighted loss of `logits` [N, B - 1, V] against `goal`."""
    logits = logits.astype(mx.float32)
    spread = mx.logsumexp(logits, axis=-1)
    cross_entropy = spread - _taken(logits, goal.labels[..., None])[..., 0]
    against_target = goal.shares.sum(axis=-1) * spread - (
        goal.shares * _taken(logits, goal.teacher)
    ).sum(axis=-1)
    share = recipe.distillation
    loss = (1 - share) * goal.known * cross_entropy + share * against_target
    weights = slot_weights(mx.stop_gradient(cross_entropy), goal.known, recipe)
    total = (weights * loss).sum() / mx.maximum(weights.sum(), 1e-6)
    right = (mx.argmax(logits, axis=-1) == goal.labels) * goal.known
    return Judged(total, right)


def slot_weights(cross_entropy: mx.array, known: mx.array, recipe: Recipe) -> mx.array:
    """Return the weight [N, B - 1] of every slot, 0 where its token is not known.

    Fixed: exp(-(k - 1) / decay). D-PACE (speculators 0.9.0, issue 979): a slot weighs as much as
    the expected accepted length owes to it, sum over j >= k of prod over i <= j of s_i, where
    s = (1 - smoothing) exp(-cross entropy) + smoothing.
    """
    n_slots = cross_entropy.shape[-1]
    if recipe.weighting == "fixed":
        return known * mx.array(np.exp(-np.arange(n_slots) / recipe.decay), mx.float32)
    chance = (1 - recipe.smoothing) * mx.exp(-cross_entropy) + recipe.smoothing
    reached = mx.cumprod(mx.where(known > 0, chance, 1), axis=-1) * known
    return known * mx.cumsum(reached, axis=-1, reverse=True)


def judge_choices(scores: mx.array, places: mx.array, goal: Goal, recipe: Recipe) -> mx.array:
    """Return the loss of a selector's `scores` [N, B - 1, K] where `places` [N, B - 1] is right."""
    right = _taken(scores, places[..., None])[..., 0]
    cross_entropy = mx.logsumexp(scores, axis=-1) - right
    weights = slot_weights(mx.stop_gradient(cross_entropy), goal.known, recipe)
    return (weights * cross_entropy).sum() / mx.maximum(weights.sum(), 1e-6)


def accepted_by_slot(right: np.ndarray) -> np.ndarray:
    """Return the share of blocks [B - 1] in which all slots up to each were right.

    One more than its sum is tokens per round over these anchors.
    """
    accepted: np.ndarray = np.cumprod(right, axis=1).mean(axis=0)
    return accepted


def _taken(values: mx.array, places: mx.array) -> mx.array:
    return mx.take_along_axis(values, places, axis=-1)
