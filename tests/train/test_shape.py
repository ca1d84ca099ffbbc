"""A new draft's shape, mask token and first weights."""

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
from dflash_mlx.train.beginning import (
    cut_vocabulary,
    new_draft,
    reduce_vocabulary,
    settle_logits,
)
from dflash_mlx.train.mask_token import mask_token
from dflash_mlx.train.shape import Wishes, draft_shape, tap_layers
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


def shape(facts, config, n_parameters, **wishes):
    """The configuration of a draft for a target with these facts."""
    return read_draft_config(draft_shape(facts, config, n_parameters, 3, Wishes(**wishes)))


@pytest.mark.parametrize(
    ("n_layers", "taps"),
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
def test_taps_are_those_of_the_published_drafts(n_layers, taps):
    """Another rule, and a draft cannot be compared with any that exists."""
    assert tap_layers(n_layers) == taps


def test_a_draft_for_qwen3_4b_has_the_published_shape():
    """z-lab's own draft for this target: 5 layers, 32 and 8 heads of 128, blocks of 16."""
    draft = shape(WIDE, QWEN3_4B, 4_022_468_096)
    assert (draft.num_hidden_layers, draft.block_size) == (5, 16)
    assert (draft.num_attention_heads, draft.num_key_value_heads, draft.head_dim) == (32, 8, 128)
    assert (draft.intermediate_size, draft.rope_theta) == (9728, 1e6)
    assert draft.target_layer_ids == (1, 9, 17, 25, 33)
    assert draft.feature_size == 5 * 2560
    assert draft.in_block_causal == (False,) * 5


def test_a_small_target_gets_a_small_draft():
    """Five layers beside thirty thin ones would cost a fifth of every round."""
    draft = shape(NARROW, SMOL, 134_515_008)
    assert (draft.num_hidden_layers, draft.block_size, draft.head_dim) == (4, 8, 64)
    assert draft.num_key_value_heads == 3


def test_wishes_are_kept():
    """An option that is taken and ignored is worse than none."""
    draft = shape(NARROW, SMOL, 134_515_008, layers=2, block=5, vocabulary=8000)
    assert (draft.num_hidden_layers, draft.block_size, draft.draft_vocab_size) == (2, 5, 8000)
    second = shape(NARROW, SMOL, 134_515_008, second=True)
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
def test_attention_of_another_kind_becomes_ordinary(config, expected):
    """A draft attends with grouped heads, whatever its target does."""
    draft = shape(WIDE, config, 4_000_000_000)
    assert (draft.num_attention_heads, draft.num_key_value_heads, draft.head_dim) == expected


def test_a_router_of_experts_does_not_make_a_thin_draft():
    """The width of one expert of many is no width for a feed-forward layer."""
    draft = shape(WIDE, {**QWEN3_4B, "intermediate_size": 768}, 30_000_000_000)
    assert draft.intermediate_size == 3 * 2560


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"layers": 0}, "--layers is 0"),
        ({"block": 1}, "--block-size is 1"),
        ({"vocabulary": 1}, "--draft-vocab is 1"),
        ({"vocabulary": 100, "second": True}, "leave out --draft-vocab"),
        ({"vocabulary": 50000}, "the target has 49152"),
    ],
)
def test_wishes_that_no_draft_has_are_refused(wishes, words):
    """Before an hour of writing, not after it."""
    with pytest.raises(BadRequest, match=words):
        shape(NARROW, SMOL, 134_515_008, **wishes)


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
def test_the_mask_is_a_token_that_no_text_holds(tmp_path, specials, vocab_size, expected):
    """A mask that conversations hold makes every such place a hole to fill."""
    write_tokenizer(tmp_path, specials)
    assert mask_token(Tokenizer.read(tmp_path, ()), vocab_size) == expected


def test_without_a_token_to_spare_there_is_no_mask(tmp_path):
    """The end token in its place would teach a draft that answers never end."""
    write_tokenizer(tmp_path, ("<end>", "<user>", "<assistant>"))
    with pytest.raises(BadRequest, match="no token that never comes"):
        mask_token(Tokenizer.read(tmp_path, ()), 259)


def tiny_config(target, **wishes):
    """A draft's configuration for the tiny target."""
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return read_draft_config(draft_shape(target.shape, config, 10**6, 257, Wishes(**wishes)))


def test_the_first_weights_follow_the_seed(target):
    """Two runs of one recipe must be one run."""
    config = tiny_config(target, layers=2)
    one, same, other = (dict(tree_flatten(new_draft(config, s).parameters())) for s in (1, 1, 2))
    assert all(mx.array_equal(one[name], same[name]) for name in one)
    assert not mx.array_equal(one["fc.weight"], other["fc.weight"])
    assert mx.array_equal(one["norm.weight"], mx.ones(32))
    deviation = mx.std(one["layers.0.mlp.down_proj.weight"]).item()
    assert deviation == pytest.approx(0.02 / 2, rel=0.1)


def test_a_dflash2_draft_begins_as_a_plain_one(target):
    """A random convolution or selector would scramble what the layers learn at first."""
    plain, second = tiny_config(target, layers=1), tiny_config(target, layers=1, second=True)
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


def test_a_reduced_vocabulary_holds_the_commonest_tokens(target):
    """Ids in another order than d2t says propose other words."""
    config = tiny_config(target, layers=1, vocabulary=40)
    model = new_draft(config, 1)
    counts = np.zeros(260, int)
    counts[100:140] = 5
    counts[100], counts[7] = 0, 1
    reduce_vocabulary(model, target, counts)
    ids = np.array(model.d2t) + np.arange(40)
    assert ids.tolist() == [7, *range(101, 140)]
    hidden = mx.random.normal((1, 3, 32), key=mx.random.key(6))
    draft = bind(model, target)
    assert mx.allclose(draft.logits(hidden), target.head(hidden)[..., mx.array(ids)], atol=1e-5)


def test_the_configuration_is_plain_json(target):
    """It goes into config.json as it is."""
    config = draft_shape(target.shape, {}, 10**6, 257, Wishes())
    assert json.loads(json.dumps(config)) == config


def test_every_family_gets_a_draft():
    """Hybrids, experts and windows name their sizes otherwise."""
    for family in ("qwen3_5", "gpt_oss", "gemma3", "deepseek_v3"):
        target = tiny_target(family)
        config = draft_shape(target.shape, vars(target.model.args), 10**6, 257, Wishes(layers=1))
        new_draft(read_draft_config(config), 0)


@pytest.mark.parametrize("size", [0.1, 30.0])
def test_the_first_logits_are_of_one_size_whatever_the_heads(size):
    """The embedded target's head made the first loss 62, where a blind guess has 11."""
    target = tiny_target()
    model = target.model
    model.lm_head.weight = model.lm_head.weight * size
    draft = bind(new_draft(tiny_config(target, layers=1), 1), target)
    settle_logits(draft)
    hidden = draft.model.norm(mx.random.normal((1, 100, 32), key=mx.random.key(5)))
    assert mx.std(draft.logits(hidden)).item() == pytest.approx(1, rel=0.1)


def test_a_draft_with_a_head_of_its_own_is_not_cut(target):
    """Its head was trained, and rows of the target's would not replace it."""
    reduced = new_draft(tiny_config(target, layers=1, vocabulary=40), 1)
    with pytest.raises(BadRequest, match="a head or a selector of its own"):
        cut_vocabulary(reduced, 20)
