"""The selector's loss is the same with the reduced head and with the full head."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.loss import Objective, TrainingExample, block_hidden
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.model.forward import blocks_at, full_head, reduced_head
from tests.tiny import PROMPT, selecting_draft

RECIPE = Recipe(steps=1, distillation=0.0, teacher_top_k=4, selector_weight=1000.0)


def test_the_reduced_head_uses_the_codebook_rows_of_its_tokens(target, tmp_path):
    """Indices of the reduced head used as token ids read the codebook rows of other tokens."""
    draft = selecting_draft(target)
    sample = Sample(PROMPT[:9], PROMPT[9:30])
    features = FeatureStore(target, draft.target_layer_ids, 4, tmp_path, 0, "tiny")(sample)
    tokens = np.array([*sample.prompt, *sample.answer])
    blocks = blocks_at(tokens, np.array([8, 12, 20]), draft.block_size)
    example = TrainingExample(tokens, 8, blocks, features)
    logits = draft.logits(block_hidden(draft, example, mx.float32))
    # ids far below the best of every position and never right do not change the selection
    far = np.array(mx.max(logits - mx.sort(logits, axis=-1)[..., -12:-11], axis=(0, 1)) < 0)
    far[blocks.labels[blocks.known]] = False
    kept = np.flatnonzero(~far)
    assert 10 < len(kept) < 260

    def selected(head):
        weights = draft.model.trainable_parameters()
        objective = Objective(draft, head, RECIPE, mx.float32)
        loss, _ = objective(weights, example)
        plain, _ = Objective(
            draft, head, Recipe(**{**vars(RECIPE), "selector_weight": 0.0}), mx.float32
        )(weights, example)
        return ((loss - plain) / 1000).item()

    cut = reduced_head(draft, kept, mx.float32)
    assert selected(cut) == pytest.approx(selected(full_head(draft)), rel=1e-3)
