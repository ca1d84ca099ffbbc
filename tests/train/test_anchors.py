"""Training blocks: anchors where decoding can start a round, and their labels."""

import numpy as np

from dflash_mlx.train.model.forward import blocks_at, draw_blocks

TOKENS = np.arange(100, 120)


def draw(n_blocks, seed=0, first=7):
    return draw_blocks(TOKENS, first, 4, n_blocks, np.random.default_rng(seed))


def test_labels_are_the_tokens_after_the_anchor():
    """With labels shifted by one, a draft learns to repeat its anchor."""
    blocks = blocks_at(TOKENS, np.array([7, 17, 18]), 4)
    assert blocks.labels.tolist() == [[108, 109, 110], [118, 119, 0], [119, 0, 0]]
    assert blocks.known.tolist() == [[True] * 3, [True, True, False], [True, False, False]]


def test_anchors_are_answer_tokens_with_a_successor():
    """Decoding never drafts inside the prompt, and the last token has no label."""
    every = draw(100)
    assert every.anchors.tolist() == list(range(7, 19))
    assert every.known[:, 0].all()


def test_anchors_are_distinct_and_follow_the_generator():
    """The same anchors in every epoch would be memorised."""
    first, second = draw(5, seed=1), draw(5, seed=2)
    assert len(set(first.anchors.tolist())) == 5
    assert first.anchors.tolist() != second.anchors.tolist()
    assert first.anchors.tolist() == draw(5, seed=1).anchors.tolist()
