"""Rotary embeddings of drafts; the golden drafts hold the numbers of YaRN and llama3."""

import math
from dataclasses import replace

import mlx.core as mx
import pytest

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.rope import make_rotation

DRAFT = DraftConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=64,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    max_position_embeddings=256,
    block_size=8,
    mask_token_id=63,
    target_layer_ids=(1,),
    num_target_layers=4,
    layer_types=("full_attention",),
    in_block_causal=(False,),
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "longrope"}, "longrope"),
        ({"type": "dynamic", "factor": 2.0}, "dynamic"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "0.5"),
    ],
)
def test_an_unsupported_rotation_is_refused_by_name(scaling: dict, named: str) -> None:
    """A draft with another rotation than it was trained with has almost no token accepted."""
    with pytest.raises(UnsupportedModel, match=named):
        make_rotation(replace(DRAFT, rope_scaling=scaling))


@pytest.mark.parametrize(
    ("extra", "length"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.0}, 1.0),
        ({"mscale": 2.0}, 0.1 * math.log(4) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
    ],
)
def test_yarn_scales_vectors_by_the_attention_factor(extra: dict, length: float) -> None:
    """An ignored attention_factor makes every attention too sharp."""
    rotate = make_rotation(replace(DRAFT, rope_scaling={**YARN, **extra}))
    rows = mx.random.normal((1, 2, 3, 16))
    scaled = mx.linalg.norm(rotate(rows, offset=5), axis=-1) / mx.linalg.norm(rows, axis=-1)
    assert mx.allclose(scaled, mx.array(length), atol=1e-5)


def test_missing_original_length_is_the_longest_position() -> None:
    """transformers uses that length; mlx-lm uses 4096 or 8192."""
    bare = {"rope_type": "yarn", "factor": 4.0}
    stated = {**bare, "original_max_position_embeddings": 256}
    rows = mx.random.normal((1, 2, 3, 16))
    got, want = (
        make_rotation(replace(DRAFT, rope_scaling=scaling))(rows, offset=200)
        for scaling in (bare, stated)
    )
    assert mx.array_equal(got, want)
