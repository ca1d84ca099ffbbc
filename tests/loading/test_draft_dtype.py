"""The data type that a draft's weights have in memory."""

import json

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.loading.compute import Compute
from dflash_mlx.loading.draft import load_draft
from tests.tiny import random_draft
from tests.tiny_configs import PUBLISHED

METAL = Compute("metal", dense=False, dtype=None)


def test_a_draft_stored_in_half_precision_does_not_run_in_it(target, tmp_path):
    """On M1 and M2 such drafts gave NaN, no acceptance and 0.44 of plain decoding's throughput."""
    weights = dict(tree_flatten(random_draft(target).model.parameters()))
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    halves = {name: array.astype(mx.float16) for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), halves)
    types = {
        array.dtype
        for _, array in tree_flatten(load_draft(folder, target, METAL).model.parameters())
    }
    assert types == {mx.bfloat16}
