"""A selector learns the same with a head that is cut as with the whole one."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.train.anchors import blocks_at
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.head import narrow_head, whole_head
from dflash_mlx.train.objective import Example, Objective, hidden_rows
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.samples import Sample
from tests.tiny import PROMPT, selecting_draft

RECIPE = Recipe(steps=1, distillation=0.0, teacher_ids=4, selector=1000.0)


def test_a_cut_head_does_not_mix_tokens_up(target, tmp_path):
    """Places in the cut head taken for ids look up the codebook rows of other tokens."""
    draft = selecting_draft(target)
    sample = Sample(PROMPT[:9], PROMPT[9:30])
    features = FeatureStore(target, draft.target_layer_ids, 4, tmp_path, 0, "tiny")(sample)
    tokens = np.array([*sample.prompt, *sample.answer])
    blocks = blocks_at(tokens, np.array([8, 12, 20]), draft.block_size)
    example = Example(tokens, 8, blocks, features)
    logits = draft.logits(hidden_rows(draft, example, mx.float32))
    # ids far from every slot's best and never right may go without changing what is selected
    far = np.array(mx.max(logits - mx.sort(logits, axis=-1)[..., -12:-11], axis=(0, 1)) < 0)
    far[blocks.labels[blocks.known]] = False
    kept = np.flatnonzero(~far)
    assert 10 < len(kept) < 260

    def selected(head):
        weights = draft.model.trainable_parameters()
        objective = Objective(draft, head, RECIPE, mx.float32)
        loss, _ = objective(weights, example)
        plain, _ = Objective(draft, head, Recipe(**{**vars(RECIPE), "selector": 0.0}), mx.float32)(
            weights, example
        )
        return ((loss - plain) / 1000).item()

    cut = narrow_head(draft, kept, mx.float32)
    assert selected(cut) == pytest.approx(selected(whole_head(draft)), rel=1e-3)
