"""Where the blocks of a training step begin, and what each of their rows should have predicted.

A block's anchor is a token that decoding could stand at: the last of the prompt or any of the
answer but its last. Row k predicts the token k places behind the anchor.
"""

from typing import NamedTuple

import numpy as np


class Blocks(NamedTuple):
    """N blocks of B rows in one sequence of n tokens."""

    anchors: np.ndarray
    """[N] positions, ascending."""
    labels: np.ndarray
    """[N, B - 1] tokens behind each anchor; 0 where the sequence has ended."""
    known: np.ndarray
    """[N, B - 1] whether there is such a token."""


def draw_blocks(
    tokens: np.ndarray, first: int, block_size: int, n_blocks: int, rng: np.random.Generator
) -> Blocks:
    """Return up to `n_blocks` blocks of `tokens` [n] at distinct anchors, uniform from `first`."""
    places = np.arange(first, len(tokens) - 1)
    if len(places) > n_blocks:
        places = rng.choice(places, n_blocks, replace=False)
    return blocks_at(tokens, np.sort(places), block_size)


def blocks_at(tokens: np.ndarray, anchors: np.ndarray, block_size: int) -> Blocks:
    """Return the blocks of `tokens` [n] that begin at `anchors` [N]."""
    places = anchors[:, None] + np.arange(1, block_size)
    known = places < len(tokens)
    labels = np.where(known, tokens[np.minimum(places, len(tokens) - 1)], 0)
    return Blocks(anchors, labels, known)
