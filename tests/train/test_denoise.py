"""The forward over many blocks equals decoding one block at a time."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.models.draft.dflash import block_mask
from dflash_mlx.train.model.forward import denoise, visible_block, visible_context
from tests.tiny import random_draft, selecting_draft, tiny_target

N_TOKENS = 60
FULL = {"layer_types": ("full_attention",) * 2, "in_block_causal": (False, False)}
DRAFTS = {
    "sliding and full": lambda target: random_draft(target),
    "full": lambda target: random_draft(target, **FULL),
    "open window": lambda target: random_draft(target, in_block_causal=(False, False)),
    "sinks and biases": lambda target: random_draft(
        target, attention_sinks=True, attention_bias=True
    ),
    "DFlash 2": lambda target: selecting_draft(target),
}


@pytest.mark.parametrize("n_rows", [2, 8])
@pytest.mark.parametrize("kind", DRAFTS)
def test_batched_blocks_equal_the_blocks_of_decoding(kind, n_rows):
    """A draft trained with another mask or other positions is wrong in decoding."""
    draft = DRAFTS[kind](tiny_target())
    feature_size = draft.model.config.feature_size
    features = mx.random.normal((1, N_TOKENS, feature_size), key=mx.random.key(3))
    tokens = np.arange(N_TOKENS) * 37 % 250
    anchors = np.array([1, 2, 15, 16, 17, 33, 59])
    together = denoise(
        draft.model, draft.block_rows(tokens[anchors].tolist(), n_rows), features, anchors
    )
    for place, anchor in enumerate(anchors.tolist()):
        context = draft.make_context()
        draft.extend(features[:, :anchor], 0, context)
        alone = draft.hidden(int(tokens[anchor]), n_rows, context)
        assert mx.allclose(together[place], alone[0], rtol=1e-4, atol=1e-5), anchor


@pytest.mark.parametrize("window", [None, 2, 7, 16])
@pytest.mark.parametrize("causal", [False, True])
def test_visibility_is_the_mask_of_decoding(window, causal):
    """Compared with the mask of the runtime and with a loop over every pair."""
    anchors, n_rows, n_context = np.array([0, 1, 5, 20]), 6, 20
    context = visible_context(anchors, n_rows, n_context, window)
    block = visible_block(n_rows, causal)
    for place, anchor in enumerate(anchors.tolist()):
        for row in range(n_rows):
            for key in range(n_context):
                near = window is None or anchor + row - key < window
                assert context[place, row, key] == (key < anchor and near)
            for other in range(n_rows):
                assert block[row, other] == (other <= row or not causal)
        mask = block_mask(np.arange(anchor), anchor, n_rows, window, causal)
        seen = np.ones((n_rows, anchor + n_rows), bool) if mask is None else np.array(mask)
        assert np.array_equal(seen[:, :anchor], context[place, :, :anchor])
        assert np.array_equal(seen[:, anchor:], block)
