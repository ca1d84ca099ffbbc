"""`scripts/torch_draft.py` against the golden files and against MLX; skipped without PyTorch."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.train.loop.features import TargetFeatures
from dflash_mlx.train.loop.loss import Objective, TrainingExample
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.model.forward import blocks_at, full_head

torch = pytest.importorskip("torch")
torch_draft = pytest.importorskip("scripts.torch_draft")

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
SHIPPED = ROOT / "dflash_mlx" / "drafts" / "smollm2-135m-dflash-b8"


def as_torch(array):
    """Return an MLX array as a tensor; floats become float32."""
    floating = mx.issubdtype(array.dtype, mx.floating)
    return torch.from_numpy(np.array(array.astype(mx.float32) if floating else array))


def torch_loss(draft, embedding, head, index_of, golden):
    """Return the loss of the golden batch, computed with PyTorch."""
    tokens, anchors = as_torch(golden["tokens"]).long(), as_torch(golden["anchors"]).long()
    first = int(anchors[0])
    teacher = as_torch(golden["teacher"])[first:], as_torch(golden["shares"])[first:]
    batch = torch_draft.block_batch(tokens, first, anchors, draft.block_size, teacher, index_of)
    ids = torch.full((len(anchors), draft.block_size), draft.mask_token)
    ids[:, 0] = tokens[anchors]
    hidden = draft(embedding[ids], as_torch(golden["features"]), anchors)
    return torch_draft.block_loss(hidden @ head.T, batch, decay=4.0, distillation=0.5)


@pytest.mark.parametrize("name", ["full", "full_tied"])
def test_loss_and_gradients_equal_the_official_draft(name):
    """Another loss would train another draft than `dflash-mlx train`."""
    golden = mx.load(str(ROOT / "tests" / "train" / "golden" / f"{name}.safetensors"))
    config = json.loads((GOLDEN / name / "config.json").read_text())
    draft = torch_draft.Draft(config)
    weights = mx.load(str(GOLDEN / name / "model.safetensors"))
    draft.load_state_dict({key: as_torch(array) for key, array in weights.items()})
    shared = mx.load(str(GOLDEN / "target.safetensors"))
    embedding = as_torch(shared["embed_tokens.weight"])
    head = embedding if name.endswith("tied") else as_torch(shared["lm_head.weight"])
    loss, right = torch_loss(draft, embedding, head, torch.arange(len(head)), golden)
    assert loss.item() == pytest.approx(golden["loss"].item(), rel=1e-5)
    assert np.array_equal(right.numpy(), np.array(golden["right"]) > 0)
    loss.backward()
    for key, parameter in draft.named_parameters():
        wanted = as_torch(golden[f"grad.{key}"])
        scale = wanted.abs().max().item()
        assert torch.allclose(parameter.grad, wanted, rtol=1e-3, atol=1e-4 * scale), key


def test_the_loss_of_the_shipped_draft_equals_that_of_mlx():
    """Quantized weights and the reduced vocabulary were read differently."""
    from types import SimpleNamespace

    from dflash_mlx.loading.compute import Compute
    from dflash_mlx.loading.draft import load_draft
    from dflash_mlx.models.protocols import TargetShape

    rng = np.random.default_rng(0)
    embedding = rng.normal(0, 0.1, (49152, 576)).astype(np.float32)
    array = mx.array(embedding)
    target = SimpleNamespace(
        shape=TargetShape("llama", 576, 30, 49152, 8192, 1, 1),
        embed=lambda tokens: array[tokens],
        head=lambda hidden: hidden @ array.T,
        layers=[],
    )
    bound = load_draft(SHIPPED, target, Compute("cpu", dense=True, dtype=mx.float32))
    draft, frozen = torch_draft.load_draft(SHIPPED)
    ids = np.array(bound.model.d2t) + np.arange(8192)
    tokens = rng.choice(ids, 60)
    golden = {
        "tokens": mx.array(tokens),
        "anchors": mx.array([9, 10, 30, 57]),
        "features": mx.array(rng.normal(0, 1, (60, 2880)).astype(np.float32)),
        "teacher": mx.array(rng.integers(0, 49152, (60, 8))),
        "shares": mx.array(rng.random((60, 8)).astype(np.float32) / 8),
    }
    index_of = torch.full((49152,), -1)
    index_of[torch.from_numpy(ids)] = torch.arange(8192)
    head = frozen["lm_head.weight"]
    loss, _ = torch_loss(draft, torch.from_numpy(embedding), head, index_of, golden)
    features = TargetFeatures(golden["features"][None], golden["teacher"][9:], golden["shares"][9:])
    blocks = blocks_at(tokens, np.array(golden["anchors"]), 8)
    recipe = Recipe(steps=1, position_decay=4.0, distillation=0.5)
    objective = Objective(bound, full_head(bound), recipe, mx.float32)
    expected, _ = objective(
        bound.model.trainable_parameters(), TrainingExample(tokens, 9, blocks, features)
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
