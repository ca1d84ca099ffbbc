"""Draft configurations in both layouts, and the keys that are refused."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.errors import BadCheckpoint, PairMismatch, UnsupportedModel
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.models.draft.config_file import is_draft_config, read_draft_config
from tests.tiny import random_draft, selecting_draft, tiny_target
from tests.tiny_configs import PUBLISHED

SECOND = {
    **PUBLISHED,
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {
        **PUBLISHED["dflash_config"],
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 8,
        "selector_top_k": 6,
    },
}
LAYERS = {
    key: PUBLISHED[key]
    for key in (
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "layer_types",
        "sliding_window",
    )
}
SPECULATORS = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "speculators_version": "0.9.0",
    "transformer_layer_config": LAYERS,
    "draft_vocab_size": 260,
    "block_size": 8,
    "mask_token_id": 257,
    "aux_hidden_state_layer_ids": [1, 3],
    "sliding_window_non_causal": False,
    "sample_from_anchor": False,
    "projector_type": "dflash",
    "shift_label": False,
    "auf": False,
}


def nested(config, **changes):
    return {**config, "dflash_config": {**config["dflash_config"], **changes}}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def write(folder, config, weights):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def weights_of(draft):
    return dict(tree_flatten(draft.model.parameters()))


def proposed(draft, seed=4):
    context = draft.make_context()
    draft.extend(mx.random.normal((1, 9, 64), key=mx.random.key(seed)), 0, context)
    return draft.propose(65, 8, context).tokens[0].tolist()


def test_both_layouts_mean_the_same_draft():
    """Hidden states that are off by one layer cost a sixth of the accepted tokens."""
    published, speculators = read_draft_config(PUBLISHED), read_draft_config(SPECULATORS)
    assert speculators.target_layer_ids == published.target_layer_ids == (0, 2)
    assert speculators.in_block_causal == published.in_block_causal == (True, False)
    assert speculators.num_target_layers is None
    assert speculators.draft_vocab_size is None
    assert (speculators.rms_norm_eps, speculators.rope_theta) == (1e-6, 10000.0)


@pytest.mark.parametrize(
    "config",
    [{**PUBLISHED, "architectures": ["Qwen3DFlashDraftModel"]}, nested(PUBLISHED, causal=False)],
)
def test_drafts_of_other_trainers_are_read(config):
    """NeMo Automodel's class name and its `causal: false` were refused."""
    draft = read_draft_config(config)
    stated = "causal" in config["dflash_config"]
    assert draft.in_block_causal == ((False, False) if stated else (True, False))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**PUBLISHED, "dflash_config": "x"}, "dflash_config is 'x'"),
        ({**PUBLISHED, "architectures": True}, "architectures"),
        ({**PUBLISHED, "architectures": [1]}, "architectures"),
        ({**PUBLISHED, "layer_types": 5}, "layer_types is 5"),
        ({**PUBLISHED, "layer_types": [[1], [2]]}, "layer_types"),
        ({**PUBLISHED, "rope_scaling": "x"}, "rope_scaling is 'x'"),
        ({**PUBLISHED, "rms_norm_eps": -0.0}, "rms_norm_eps"),
        ({**PUBLISHED, "rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({**PUBLISHED, "num_attention_heads": 0}, "num_attention_heads is 0"),
        ({**PUBLISHED, "head_dim": [1]}, "head_dim"),
        ({**PUBLISHED, "quantization": "x"}, "quantization is 'x'"),
        ({**PUBLISHED, "target_hidden_size": "x"}, "target_hidden_size is 'x'"),
        ({**PUBLISHED, "num_target_layers": "x"}, "num_target_layers is 'x'"),
        ({**PUBLISHED, "is_causal": "x"}, "is_causal is 'x'"),
        ({**PUBLISHED, "hidden_act": ["silu"]}, "hidden_act"),
        ({**PUBLISHED, "attention_bias": "x"}, "attention_bias is 'x'"),
        ({**SPECULATORS, "transformer_layer_config": [1]}, "transformer_layer_config is"),
        ({**SPECULATORS, "speculators_model_type": [1]}, "speculators draft of kind"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(config, words):
    """Such values ended in AttributeError, TypeError and ValueError."""
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=words):
        read_draft_config(config)


def test_dflash2_drafts_of_both_layouts_attend_to_the_whole_block():
    """A DFlash 2 draft run as causal inside the block loses half of its accepted tokens."""
    second = {**SPECULATORS, "speculators_model_type": "dflash2"}
    del second["sliding_window_non_causal"]
    second |= {key: SECOND["dflash_config"][key] for key in ("conv_kernel_size", "conv_group_size")}
    second |= {"selector_rank": 8, "selector_top_k": 6}
    assert read_draft_config(second).in_block_causal == (False, False)
    assert read_draft_config({**SECOND, "is_causal": False}).in_block_causal == (False, False)
    assert read_draft_config(second).selector == read_draft_config(SECOND).selector


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({**PUBLISHED, "architectures": ["Qwen3DSparkModel"]}, "DSpark draft"),
        ({**SPECULATORS, "speculators_model_type": "dspark"}, "'dspark'"),
        ({**SPECULATORS, "speculators_model_type": "eagle3"}, "'eagle3'"),
        ({**SPECULATORS, "sample_from_anchor": True}, "sample_from_anchor"),
        ({**SPECULATORS, "projector_type": "domino"}, "projector_type to 'domino'"),
        ({**SPECULATORS, "shift_label": True}, "shift_label"),
        (nested(PUBLISHED, markov_rank=256), "markov_rank to 256"),
        (nested(PUBLISHED, causal=True), "causal to True"),
        (nested(PUBLISHED, draft_window_size=1024), "draft_window_size"),
        (nested(PUBLISHED, context_gate="sigmoid"), "unknown keys in dflash_config: context_gate"),
        ({**PUBLISHED, "hidden_act": "gelu"}, "hidden_act to 'gelu'"),
        ({**PUBLISHED, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({**PUBLISHED, "n_routed_experts": 8}, "n_routed_experts"),
        ({**PUBLISHED, "sample_from_anchor": True}, "sample_from_anchor"),
        ({**SPECULATORS, "transformer_layer_config": {**LAYERS, "mlp_bias": True}}, "mlp_bias"),
    ],
)
def test_other_mathematics_is_refused_by_name(config, word):
    """With such a key ignored the draft loads, and no token is accepted."""
    with pytest.raises(UnsupportedModel, match=word):
        read_draft_config(config)


def test_keys_without_effect_are_accepted():
    """A published draft was refused for the keys of its exporter."""
    named = {"_name_or_path": "x", "torch_dtype": "bfloat16", "transformers_version": "5.15.0"}
    read_draft_config({**nested(PUBLISHED, runtime_block_size=3), **named})


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (nested(SECOND, conv_group_size=5), "does not divide"),
        (nested(SECOND, selector_top_k=300), "selector_top_k is 300"),
        (nested(SECOND, selector_rank=None), "selector_rank is missing"),
        ({**SPECULATORS, "aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
        ({**SPECULATORS, "aux_hidden_state_layer_ids": [0, 2]}, "count from 0"),
    ],
)
def test_impossible_values_are_named(config, word):
    """A guessed value is wrong for most published drafts."""
    with pytest.raises(BadCheckpoint, match=word):
        read_draft_config(config)


def test_dspark_files_count_as_drafts():
    """Taken for a target, a DSpark draft would be refused for the wrong reason."""
    assert is_draft_config({"architectures": ["DSparkDraftModel"]})
    assert is_draft_config({"architectures": ["Qwen3DSparkModel"]})
    assert is_draft_config({"model_type": "qwen3", "markov_rank": 256})
    assert not is_draft_config({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
    assert is_draft_config({**SPECULATORS, "speculators_model_type": "dspark"})


def test_a_speculators_draft_runs_as_it_is(target, tmp_path):
    """No peer runs this layout without a conversion."""
    weights = weights_of(random_draft(target))
    extra = {"verifier_norm.weight": mx.ones(32), "t2d": mx.ones(260, mx.bool_)}
    folder = write(tmp_path / "speculators", SPECULATORS, weights | extra)
    expected = load_draft(write(tmp_path / "published", PUBLISHED, weights), target, compute_here())
    assert proposed(load_draft(folder, target, compute_here())) == proposed(expected)


@pytest.mark.parametrize(
    "config",
    [
        {**SPECULATORS, "draft_vocab_size": 64},
        {**PUBLISHED, "draft_vocab_size": 64},
        nested(PUBLISHED, draft_vocab_size=64),
    ],
)
def test_a_reduced_vocabulary_is_mapped_to_the_targets(target, tmp_path, config):
    """Ids of the small vocabulary taken for the target's propose other words altogether."""
    weights = weights_of(random_draft(target))
    weights["lm_head.weight"] = mx.random.normal((64, 32), key=mx.random.key(8))
    kept = sorted({(7 * at) % 260 for at in range(64)})
    weights["d2t"] = mx.array([token - at for at, token in enumerate(kept)], dtype=mx.int64)
    draft = load_draft(write(tmp_path / "reduced", config, weights), target, compute_here())
    context = draft.make_context()
    draft.extend(mx.random.normal((1, 9, 64), key=mx.random.key(4)), 0, context)
    best = mx.argmax(draft.logits(draft.hidden(65, 8, context)), axis=-1)[0].tolist()
    assert draft.propose(65, 8, context).tokens[0].tolist() == [kept[at] for at in best]


def test_sinks_take_attention_without_giving_a_value(target, tmp_path):
    """Left out, every row of such a draft attends to what it was trained to ignore."""
    weights = weights_of(random_draft(target, attention_sinks=True))
    config = nested(PUBLISHED, attention_sink_bias=True)
    far = {name: mx.full(w.shape, -1e9) for name, w in weights.items() if "sink" in name}
    assert len(far) == 2
    without = {name: weight for name, weight in weights.items() if name not in far}
    ignored = load_draft(write(tmp_path / "far", config, weights | far), target, compute_here())
    plain = load_draft(write(tmp_path / "plain", PUBLISHED, without), target, compute_here())
    assert proposed(ignored) == proposed(plain)
    near = {name: mx.full(w.shape, 1e9) for name, w in far.items()}
    draft = load_draft(write(tmp_path / "near", config, weights | near), target, compute_here())
    attention = draft.model.layers[1].self_attn
    context = draft.make_context()
    draft.extend(mx.ones((1, 4, 64)), 0, context)
    attended = attention(mx.ones((1, 3, 32)), draft.model._rope, 4, context.layers[1])
    assert mx.abs(attended).max().item() < 1e-6


def test_a_second_draft_reads_its_bare_codebooks(target, tmp_path):
    """Published files name the codebooks without `.weight`."""
    weights = weights_of(selecting_draft(target))
    bare = {name.replace("codebook.weight", "codebook"): w for name, w in weights.items()}
    assert bare.keys() != weights.keys()
    draft = load_draft(write(tmp_path / "bare", SECOND, bare), target, compute_here())
    named = load_draft(write(tmp_path / "named", SECOND, weights), target, compute_here())
    assert proposed(draft) == proposed(named)


def quantized(weights, rank):
    """Both codebooks in 8 bits, `rank` wide."""
    out = dict(weights)
    for name in ("predecessor_codebook", "successor_codebook"):
        path = f"candidate_selector.{name}"
        wide = mx.random.normal((260, rank), key=mx.random.key(len(name)))
        packed, scales, biases = mx.quantize(wide, group_size=32, bits=8)
        out |= {f"{path}.weight": packed, f"{path}.scales": scales, f"{path}.biases": biases}
    return out


def test_quantized_codebooks_are_read(target, tmp_path):
    """Quantized codebooks, the largest tensors of a DFlash 2 draft, were refused."""
    config = nested(SECOND, selector_rank=32)
    weights = weights_of(selecting_draft(target))
    weights["candidate_selector.hidden_projection.weight"] = mx.ones((32, 32))
    folder = write(tmp_path / "quantized", config, quantized(weights, 32))
    draft = load_draft(folder, target, compute_here())
    assert len(proposed(draft)) == 7
    table = draft.model.candidate_selector.predecessor_codebook(mx.array([3]))
    wide = mx.random.normal((260, 32), key=mx.random.key(len("predecessor_codebook")))
    assert mx.abs(table - wide[3]).max().item() < 0.05


def test_missing_and_misshaped_tensors_of_dflash2_are_refused(target, tmp_path):
    """A draft without its convolutions loaded, and a codebook of another rank failed late."""
    weights = weights_of(selecting_draft(target))
    without = {name: w for name, w in weights.items() if "mlp_conv" not in name}
    with pytest.raises(BadCheckpoint, match=r"lacks layers\.0\.mlp_conv"):
        load_draft(write(tmp_path / "without", SECOND, without), target, compute_here())
    config = nested(SECOND, selector_rank=32)
    weights["candidate_selector.hidden_projection.weight"] = mx.ones((32, 32))
    with pytest.raises(BadCheckpoint, match="codebook"):
        load_draft(
            write(tmp_path / "narrow", config, quantized(weights, 64)), target, compute_here()
        )


@pytest.mark.parametrize(("size", "fits"), [(260, True), (200, True), (384, True), (4096, False)])
def test_vocabularies_may_differ_by_padding_only(target, tmp_path, size, fits):
    """Builds of one model pad their vocabulary differently; other models have other sizes."""
    weights = weights_of(random_draft(target))
    folder = write(tmp_path / "draft", {**PUBLISHED, "vocab_size": size}, weights)
    if fits:
        assert max(proposed(load_draft(folder, target, compute_here()))) < min(size, 260)
    else:
        with pytest.raises(PairMismatch, match="a vocabulary of 4096, this target has 260"):
            load_draft(folder, target, compute_here())


def test_layer_ids_beyond_the_targets_last_layer_are_refused(target, tmp_path):
    """speculators files do not hold the number of the target's layers."""
    weights = weights_of(random_draft(target))
    deep = {**SPECULATORS, "aux_hidden_state_layer_ids": [1, 9]}
    with pytest.raises(
        PairMismatch, match="hidden states of layer 8, this target has layers 0 to 2"
    ):
        load_draft(write(tmp_path / "deep", deep, weights), target, compute_here())


def test_a_draft_computes_in_its_own_type():
    """float16 hidden states with bfloat16 weights promoted every weight to float32 each round."""
    target = tiny_target("qwen3")
    target.model.set_dtype(mx.float16)
    draft = random_draft(target)
    draft.model.set_dtype(mx.bfloat16)
    context = draft.make_context()
    draft.extend(
        mx.random.normal((1, 20, draft.model.fc.weight.shape[1])).astype(mx.float16), 0, context
    )
    assert {array.dtype for array in context.arrays} == {mx.bfloat16}
    hidden = draft.hidden(65, 8, context)
    assert hidden.dtype == mx.bfloat16
    assert draft.logits(draft.for_head(hidden)).dtype == mx.float16
    grown = sum(array[0, :, 0].nbytes for array in context.layers[1].arrays)
    assert draft.row_bytes == grown
