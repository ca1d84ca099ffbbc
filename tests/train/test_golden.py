"""Loss and gradients against the official PyTorch draft, block by block.

The golden files are made by `scripts/make_training_golden.py`.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.loading.weights import fill, read_safetensors
from dflash_mlx.models.draft.build import bind, draft_model
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.train.loop.features import TargetFeatures
from dflash_mlx.train.loop.loss import Objective, TrainingExample
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.model.forward import blocks_at, full_head

TESTS = Path(__file__).resolve().parent.parent
CASES = ("full", "full_tied", "mixed")


def official_draft(name):
    """The draft of a golden case, bound to the embedding and head that all cases share."""
    folder = TESTS / "golden" / name
    config = read_draft_config(json.loads((folder / "config.json").read_text()))
    model = draft_model(config, ())
    fill(model, {k: v.astype(mx.float32) for k, v in read_safetensors(folder).items()}, name)
    weights = mx.load(str(TESTS / "golden" / "target.safetensors"))
    embedding = weights["embed_tokens.weight"].astype(mx.float32)
    head = embedding if name.endswith("tied") else weights["lm_head.weight"].astype(mx.float32)
    shape = SimpleNamespace(vocab_size=len(embedding), hidden_size=embedding.shape[1])
    target = SimpleNamespace(
        shape=shape, embed=lambda tokens: embedding[tokens], head=lambda hidden: hidden @ head.T
    )
    return bind(model, target)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_the_official_models(name, checkpointing):
    """A wrong mask, position or weight still trains; only the comparison shows it."""
    golden = mx.load(str(TESTS / "train" / "golden" / f"{name}.safetensors"))
    draft = official_draft(name)
    tokens, anchors = np.array(golden["tokens"]), np.array(golden["anchors"])
    first = int(anchors[0])
    example = TrainingExample(
        tokens,
        first,
        blocks_at(tokens, anchors, draft.block_size),
        TargetFeatures(
            golden["features"][None], golden["teacher"][first:], golden["shares"][first:]
        ),
    )
    recipe = Recipe(steps=1, position_decay=4.0, distillation=0.5, checkpointing=checkpointing)
    objective = Objective(draft, full_head(draft), recipe, mx.float32)
    weights = draft.model.trainable_parameters()
    (loss, right), grads = mx.value_and_grad(objective)(weights, example)
    assert loss.item() == pytest.approx(golden["loss"].item(), rel=1e-5)
    assert np.array_equal(np.array(right), np.array(golden["right"]))
    found = dict(tree_flatten(grads))
    wanted = {name[5:]: array for name, array in golden.items() if name.startswith("grad.")}
    assert found.keys() == wanted.keys()
    for path, gradient in wanted.items():
        scale = mx.abs(gradient).max().item()
        assert mx.allclose(found[path], gradient, rtol=1e-3, atol=1e-4 * scale), path
