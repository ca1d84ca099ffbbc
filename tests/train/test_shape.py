"""The configuration, mask token and initial weights of a new draft."""

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.models.draft.build import bind
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.models.protocols import TargetShape
from dflash_mlx.train.model.initial_draft import (
    fill_reduced_head,
    new_draft,
    normalize_logits,
    with_reduced_vocabulary,
)
from dflash_mlx.train.model.shape import (
    DraftOverrides,
    choose_mask_token,
    default_target_layers,
    new_draft_config,
)
from tests.tiny import tiny_target
from tests.train.tiny_folder import SPECIALS, write_tokenizer

QWEN3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
SMOL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e5,
    "tie_word_embeddings": True,
}
WIDE = TargetShape("qwen3", 2560, 36, 151936, 40960, 1, 1)
NARROW = TargetShape("llama", 576, 30, 49152, 8192, 1, 1)


def shape(facts, config, n_parameters, **overrides):
    """Return the configuration of a draft for a target."""
    return read_draft_config(
        new_draft_config(facts, config, n_parameters, 3, DraftOverrides(**overrides))
    )


@pytest.mark.parametrize(
    ("n_layers", "layers"),
    [
        (24, (1, 6, 11, 16, 21)),
        (28, (1, 7, 13, 19, 25)),
        (30, (1, 8, 14, 20, 27)),
        (36, (1, 9, 17, 25, 33)),
        (40, (1, 10, 19, 28, 37)),
        (64, (1, 16, 31, 46, 61)),
        (6, (1, 2, 3)),
        (5, (1, 2)),
        (3, (1,)),
        (1, (0,)),
    ],
)
def test_target_layers_are_those_of_the_published_drafts(n_layers, layers):
    """With another rule, drafts cannot be compared with published ones."""
    assert default_target_layers(n_layers) == layers


def test_a_draft_for_qwen3_4b_has_the_published_shape():
    """z-lab's draft for this target: 5 layers, 32 and 8 heads of 128, block size 16."""
    draft = shape(WIDE, QWEN3_4B, 4_022_468_096)
    assert (draft.num_hidden_layers, draft.block_size) == (5, 16)
    assert (draft.num_attention_heads, draft.num_key_value_heads, draft.head_dim) == (32, 8, 128)
    assert (draft.intermediate_size, draft.rope_theta) == (9728, 1e6)
    assert draft.target_layer_ids == (1, 9, 17, 25, 33)
    assert draft.feature_size == 5 * 2560
    assert draft.in_block_causal == (False,) * 5


def test_a_small_target_gets_a_small_draft():
    """Five layers would cost a fifth of every round for a target of thirty narrow ones."""
    draft = shape(NARROW, SMOL, 134_515_008)
    assert (draft.num_hidden_layers, draft.block_size, draft.head_dim) == (4, 8, 64)
    assert draft.num_key_value_heads == 3


def test_overrides_are_applied():
    """Options were accepted and ignored."""
    draft = shape(NARROW, SMOL, 134_515_008, layers=2, block_size=5, vocabulary=8000)
    assert (draft.num_hidden_layers, draft.block_size, draft.draft_vocab_size) == (2, 5, 8000)
    second = shape(NARROW, SMOL, 134_515_008, dflash2=True)
    assert second.selector.top_k == 16
    assert second.convolution.group_size == 16
    assert shape(NARROW, SMOL, 134_515_008, vocabulary=49152).draft_vocab_size is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"kv_lora_rank": 512, "num_attention_heads": 128, "num_key_value_heads": 128},
            (20, 5, 128),
        ),
        ({"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 256}, (8, 8, 256)),
        ({}, (20, 5, 128)),
    ],
)
def test_other_attention_becomes_grouped_query_attention(config, expected):
    """A draft has grouped-query attention for every kind of target."""
    draft = shape(WIDE, config, 4_000_000_000)
    assert (draft.num_attention_heads, draft.num_key_value_heads, draft.head_dim) == expected


def test_the_size_of_one_expert_is_not_used():
    """The feed-forward size of one of many experts is too small for a draft."""
    draft = shape(WIDE, {**QWEN3_4B, "intermediate_size": 768}, 30_000_000_000)
    assert draft.intermediate_size == 3 * 2560


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"layers": 0}, "--layers is 0"),
        ({"block_size": 1}, "--block-size is 1"),
        ({"vocabulary": 1}, "--draft-vocab is 1"),
        ({"vocabulary": 100, "dflash2": True}, "leave out --draft-vocab"),
        ({"vocabulary": 50000}, "the target has 49152"),
    ],
)
def test_invalid_overrides_are_refused(overrides, message):
    """They were found after an hour of generation."""
    with pytest.raises(BadRequest, match=message):
        shape(NARROW, SMOL, 134_515_008, **overrides)


@pytest.mark.parametrize(
    ("specials", "vocab_size", "expected"),
    [
        (("<end>", "<user>", "<assistant>", "<|mask|>", "<reserved_1>"), 261, 259),
        (("<end>", "<user>", "<assistant>", "<fim>", "<reserved_1>"), 261, 260),
        (("<end>", "<user>", "<assistant>", "<fim>"), 264, 260),
        (SPECIALS, 260, 257),
        (("<end>", "<endoftext>", "<user>", "<assistant>", "<fim>"), 261, 260),
    ],
)
def test_the_mask_token_never_occurs_in_text(tmp_path, specials, vocab_size, expected):
    """Occurrences in text would be taken for positions to predict."""
    write_tokenizer(tmp_path, specials)
    assert choose_mask_token(Tokenizer.read(tmp_path, ()), vocab_size) == expected


def test_a_tokenizer_without_a_free_token_is_refused(tmp_path):
    """The end token as mask would teach a draft that answers never end."""
    write_tokenizer(tmp_path, ("<end>", "<user>", "<assistant>"))
    with pytest.raises(BadRequest, match="no token for the mask"):
        choose_mask_token(Tokenizer.read(tmp_path, ()), 259)


def tiny_config(target, **overrides):
    """Return a draft's configuration for the tiny target."""
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return read_draft_config(
        new_draft_config(target.shape, config, 10**6, 257, DraftOverrides(**overrides))
    )


def test_initial_weights_follow_the_seed(target):
    """Two runs with the same seed have to be identical."""
    config = tiny_config(target, layers=2)
    one, same, other = (dict(tree_flatten(new_draft(config, s).parameters())) for s in (1, 1, 2))
    assert all(mx.array_equal(one[name], same[name]) for name in one)
    assert not mx.array_equal(one["fc.weight"], other["fc.weight"])
    assert mx.array_equal(one["norm.weight"], mx.ones(32))
    deviation = mx.std(one["layers.0.mlp.down_proj.weight"]).item()
    assert deviation == pytest.approx(0.02 / 2, rel=0.1)


def test_a_new_dflash2_draft_equals_a_plain_one(target):
    """A random convolution or selector would disturb the first steps."""
    plain, second = tiny_config(target, layers=1), tiny_config(target, layers=1, dflash2=True)
    model = new_draft(second, 1)
    draft = bind(model, target)
    context = draft.make_context()
    draft.extend(mx.random.normal((1, 9, plain.feature_size), key=mx.random.key(4)), 0, context)
    layer = model.layers[0]
    rows = mx.random.normal((1, 8, 32), key=mx.random.key(5))
    mixed, _ = layer.attention_conv.before(rows)
    assert mx.array_equal(mixed, rows)
    logits = draft.logits(draft.hidden(65, 8, context))
    assert mx.array_equal(draft.propose(65, 8, context).tokens[0], mx.argmax(logits, axis=-1)[0])


def test_a_reduced_vocabulary_has_the_most_frequent_tokens(target):
    """Ids in another order than in d2t propose other tokens."""
    config = tiny_config(target, layers=1, vocabulary=40)
    model = new_draft(config, 1)
    counts = np.zeros(260, int)
    counts[100:140] = 5
    counts[100], counts[7] = 0, 1
    fill_reduced_head(model, target, counts)
    ids = np.array(model.d2t) + np.arange(40)
    assert ids.tolist() == [7, *range(101, 140)]
    hidden = mx.random.normal((1, 3, 32), key=mx.random.key(6))
    draft = bind(model, target)
    assert mx.allclose(draft.logits(hidden), target.head(hidden)[..., mx.array(ids)], atol=1e-5)


def test_the_configuration_is_json(target):
    """It is written to config.json unchanged."""
    config = new_draft_config(target.shape, {}, 10**6, 257, DraftOverrides())
    assert json.loads(json.dumps(config)) == config


def test_every_family_gets_a_draft():
    """Hybrid, mixture-of-experts and windowed families name their sizes differently."""
    for family in ("qwen3_5", "gpt_oss", "gemma3", "deepseek_v3"):
        target = tiny_target(family)
        config = new_draft_config(
            target.shape, vars(target.model.args), 10**6, 257, DraftOverrides(layers=1)
        )
        new_draft(read_draft_config(config), 0)


@pytest.mark.parametrize("size", [0.1, 30.0])
def test_initial_logits_have_a_deviation_of_one_for_any_head(size):
    """The embedded target's head gave a first loss of 62; a uniform guess has 11."""
    target = tiny_target()
    model = target.model
    model.lm_head.weight = model.lm_head.weight * size
    draft = bind(new_draft(tiny_config(target, layers=1), 1), target)
    normalize_logits(draft)
    hidden = draft.model.norm(mx.random.normal((1, 100, 32), key=mx.random.key(5)))
    assert mx.std(draft.logits(hidden)).item() == pytest.approx(1, rel=0.1)


def test_a_draft_with_its_own_head_keeps_its_vocabulary(target):
    """Its head was trained, so rows of the target's head cannot replace it."""
    reduced = new_draft(tiny_config(target, layers=1, vocabulary=40), 1)
    with pytest.raises(BadRequest, match="its own head or selector"):
        with_reduced_vocabulary(reduced, 20)
