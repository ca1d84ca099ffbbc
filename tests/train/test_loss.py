"""The loss against sums written out by hand."""

import math

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.train.loss import Goal, accepted_by_slot, judge, slot_weights
from dflash_mlx.train.recipe import Recipe, decay_for

LOGITS = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)


def goal(known=((1, 1, 1), (1, 1, 0))):
    shares = np.full((2, 3, 2), 0.25, np.float32) * np.array(known, np.float32)[..., None]
    return Goal(
        labels=mx.array([[0, 1, 2], [3, 4, 0]]),
        known=mx.array(known, mx.float32),
        teacher=mx.array([[[0, 1]] * 3, [[2, 3]] * 3]),
        shares=mx.array(shares),
    )


def test_the_loss_is_the_weighted_mean_over_known_slots():
    """A slot behind the end of an answer that counts pulls the draft towards token 0."""
    spoken = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    total = weight = 0.0
    for block, slot, label in [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4)]:
        teacher = (0, 1) if block == 0 else (2, 3)
        soft = -sum(0.25 * spoken[block, slot, place] for place in teacher)
        mixed = 0.7 * -spoken[block, slot, label] + 0.3 * soft
        total += math.exp(-slot / 2) * mixed
        weight += math.exp(-slot / 2)
    recipe = Recipe(steps=1, decay=2.0, distillation=0.3)
    assert judge(mx.array(LOGITS), goal(), recipe).loss.item() == pytest.approx(total / weight)


def test_what_the_head_lacks_does_not_count():
    """A label outside a reduced vocabulary can never be accepted; it must not teach id 0."""
    recipe = Recipe(steps=1, distillation=0.0)
    without = judge(mx.array(LOGITS), goal(((1, 1, 0), (1, 1, 0))), recipe)
    other = LOGITS.copy()
    other[0, 2] = 9 * other[0, 2] + 1
    assert judge(mx.array(other), goal(((1, 1, 0), (1, 1, 0))), recipe).loss == without.loss
    assert without.right[0, 2].item() == 0


def test_d_pace_weighs_a_slot_by_the_length_that_hangs_on_it():
    """Written out for one block: the first slot carries all that can follow."""
    recipe = Recipe(steps=1, weighting="d-pace", smoothing=0.5)
    chances = [0.5 * 0.8 + 0.5, 0.5 * 0.1 + 0.5, 0.5 * 0.6 + 0.5]
    reached = [chances[0], chances[0] * chances[1], chances[0] * chances[1] * chances[2]]
    entropies = mx.array([[-math.log(0.8), -math.log(0.1), -math.log(0.6)]])
    weights = slot_weights(entropies, mx.ones((1, 3)), recipe)
    wanted = [sum(reached), sum(reached[1:]), reached[2]]
    assert np.allclose(np.array(weights)[0], wanted, rtol=1e-5)
    short = slot_weights(entropies, mx.array([[1.0, 1.0, 0.0]]), recipe)
    assert np.allclose(np.array(short)[0], [reached[0] + reached[1], reached[1], 0], rtol=1e-5)


def test_accepted_by_slot_stops_at_the_first_wrong_one():
    """A slot right behind a wrong one is never accepted."""
    right = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1]])
    assert accepted_by_slot(right).tolist() == [0.75, 0.5, 0.25]


def test_decays_are_the_papers():
    """Blocks of 8, 10 and 16 have published decays of 4, 5 and 7."""
    assert [round(decay_for(size)) for size in (8, 10, 16)] == [4, 5, 7]
