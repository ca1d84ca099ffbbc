"""The loss compared with sums written out by hand."""

import math

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.train.loop.loss import (
    LossTargets,
    accepted_by_position,
    block_loss,
    position_weights,
)
from dflash_mlx.train.loop.recipe import Recipe, position_decay_for

LOGITS = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)


def goal(known=((1, 1, 1), (1, 1, 0))):
    shares = np.full((2, 3, 2), 0.25, np.float32) * np.array(known, np.float32)[..., None]
    return LossTargets(
        labels=mx.array([[0, 1, 2], [3, 4, 0]]),
        known=mx.array(known, mx.float32),
        teacher=mx.array([[[0, 1]] * 3, [[2, 3]] * 3]),
        probabilities=mx.array(shares),
    )


def test_the_loss_is_the_weighted_mean_over_known_positions():
    """Positions after the end of an answer teach the draft to predict token 0."""
    log_probs = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    total = weight = 0.0
    for block, position, label in [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4)]:
        teacher = (0, 1) if block == 0 else (2, 3)
        soft = -sum(0.25 * log_probs[block, position, place] for place in teacher)
        mixed = 0.7 * -log_probs[block, position, label] + 0.3 * soft
        total += math.exp(-position / 2) * mixed
        weight += math.exp(-position / 2)
    recipe = Recipe(steps=1, position_decay=2.0, distillation=0.3)
    assert block_loss(mx.array(LOGITS), goal(), recipe).loss.item() == pytest.approx(total / weight)


def test_tokens_outside_the_head_do_not_count():
    """A label outside a reduced vocabulary can never be accepted and must not teach id 0."""
    recipe = Recipe(steps=1, distillation=0.0)
    without = block_loss(mx.array(LOGITS), goal(((1, 1, 0), (1, 1, 0))), recipe)
    other = LOGITS.copy()
    other[0, 2] = 9 * other[0, 2] + 1
    assert block_loss(mx.array(other), goal(((1, 1, 0), (1, 1, 0))), recipe).loss == without.loss
    assert without.right[0, 2].item() == 0


def test_d_pace_weights_equal_the_formula():
    """Written out for one block: the first position decides about all later ones."""
    recipe = Recipe(steps=1, weighting="d-pace", smoothing=0.5)
    chances = [0.5 * 0.8 + 0.5, 0.5 * 0.1 + 0.5, 0.5 * 0.6 + 0.5]
    reached = [chances[0], chances[0] * chances[1], chances[0] * chances[1] * chances[2]]
    entropies = mx.array([[-math.log(0.8), -math.log(0.1), -math.log(0.6)]])
    weights = position_weights(entropies, mx.ones((1, 3)), recipe)
    wanted = [sum(reached), sum(reached[1:]), reached[2]]
    assert np.allclose(np.array(weights)[0], wanted, rtol=1e-5)
    short = position_weights(entropies, mx.array([[1.0, 1.0, 0.0]]), recipe)
    assert np.allclose(np.array(short)[0], [reached[0] + reached[1], reached[1], 0], rtol=1e-5)


def test_acceptance_stops_at_the_first_wrong_token():
    """A right token after a wrong one is never accepted."""
    right = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1]])
    assert accepted_by_position(right).tolist() == [0.75, 0.5, 0.25]


def test_position_decays_are_those_of_the_paper():
    """Block sizes 8, 10 and 16 have published decays of 4, 5 and 7."""
    assert [round(position_decay_for(size)) for size in (8, 10, 16)] == [4, 5, 7]
