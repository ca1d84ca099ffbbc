"""Target configurations of every transformers version: read alike, or refused by name."""

import importlib
import inspect
import json
from dataclasses import asdict, is_dataclass

import pytest

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.rope_config import read_rope, yarn_attention_factor
from dflash_mlx.models.targets.config_file import (
    _DEFAULTS,
    _INTERVALS,
    _RENAMED,
    read_target_config,
)
from dflash_mlx.models.targets.config_keys import neutral_values
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES
from dflash_mlx.models.targets.rope_spelling import ROPE_KEYS, ROPE_STYLES
from tests.tiny_configs import CONFIGS

TEXT_ARGS = {
    "gemma3": ("gemma3_text", "ModelArgs"),
    "gemma4": ("gemma4_text", "ModelArgs"),
    "kimi_k25": ("deepseek_v3", "ModelArgs"),
    "qwen3_5": ("qwen3_5", "TextModelArgs"),
    "qwen3_5_moe": ("qwen3_5", "TextModelArgs"),
}
"""Where mlx-lm has the arguments of a wrapped text model."""

WITHOUT_EFFECT = {
    *("_name_or_path", "architectures", "chunk_size_feed_forward", "dtype", "id2label"),
    *("is_encoder_decoder", "label2id", "model_type", "output_attentions", "problem_type"),
    *("output_hidden_states", "return_dict", "transformers_version"),
    # training, tokens, implementation
    *("attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "use_cache"),
    *("pretraining_tp", "num_nextn_predict_layers"),
    # other keys give them, or the weights do
    *("head_dim", "qk_head_dim", "num_key_value_heads", "intermediate_size", "per_layer_config"),
    *("max_position_embeddings", "max_window_layers", "use_sliding_window", "sliding_window"),
    *("tie_word_embeddings", "mlp_layer_types"),
    # of the linear attention of MiniMax-Text-01, whose layer_types are refused
    "block_size",
}


def text_args(module):
    name, args = TEXT_ARGS.get(module, (module, "ModelArgs"))
    return getattr(importlib.import_module(f"mlx_lm.models.{name}"), args)


def arguments(config):
    """The text arguments that mlx-lm makes of a configuration in its spelling."""
    module = MLX_LM_MODULES[config["model_type"]]
    text = config.get("text_config", config)
    made = text_args(module).from_dict(json.loads(json.dumps(text)))
    assert is_dataclass(made)
    return asdict(made)


def written_by_transformers(config):
    from transformers import AutoConfig

    return json.loads(AutoConfig.for_model(**json.loads(json.dumps(config))).to_json_string())


AS_TRANSFORMERS = [
    name
    for name in CONFIGS
    # transformers' class nests the tiny configuration, or describes another model of that name
    if name not in ("muse_glimmer", "minimax", "longcat_flash")
]


@pytest.mark.parametrize("name", AS_TRANSFORMERS)
def test_a_configuration_written_by_transformers_5_means_the_same_model(name):
    """mlx-lm dropped rope_parameters and used its defaults: fluent text of another model."""
    config = CONFIGS[name]
    saved = written_by_transformers(config)
    before = arguments(read_target_config(config, "old").values)
    after = arguments(read_target_config(saved, "new").values)
    free = {"layer_types", "model_type", "vocab_size_per_layer_input", "pad_token_id"}
    if name == "gemma4_small":
        free.add("num_global_key_value_heads")  # without effect where keys are not values
    if name == "lfm2":
        free |= {"block_ff_dim", "intermediate_size"}
        assert after["block_ff_dim"] == before["block_ff_dim"]
    different = {
        key: (value, after[key])
        for key, value in before.items()
        if key not in free and after[key] != value
    }
    assert different == {}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_spelling_keeps_its_arguments(name):
    """A normaliser that changes what worked changes the text of every model."""
    config = CONFIGS[name]
    before, after = arguments(config), arguments(read_target_config(config, "a file").values)
    rope = {*ROPE_KEYS, "tie_word_embeddings"}
    assert {k: v for k, v in before.items() if k not in rope} == {
        k: v for k, v in after.items() if k not in rope
    }


@pytest.mark.parametrize("model_type", MLX_LM_MODULES)
def test_every_key_that_transformers_reads_is_classified(model_type):
    """A key that mlx-lm does not read, and that no table names, is ignored silently."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"transformers has no class for {model_type}")
    module = MLX_LM_MODULES[model_type]
    read = set(inspect.signature(text_args(module)).parameters) | set(_RENAMED.get(module, {}))
    read |= {"layer_types"} if module in _INTERVALS else set()
    keys = AutoConfig.for_model(model_type).get_text_config().to_dict().keys()
    unknown = keys - read - neutral_values(module).keys() - ROPE_KEYS - WITHOUT_EFFECT
    assert sorted(unknown) == []


def test_the_tables_name_modules_and_keys_that_exist():
    """A misspelled entry protects nothing."""
    modules = set(MLX_LM_MODULES.values())
    assert ROPE_STYLES.keys() == modules
    assert {*_DEFAULTS, *_INTERVALS, *_RENAMED} <= modules
    for module in modules:
        read = set(inspect.signature(text_args(module)).parameters)
        applied = {"hidden_activation", "tie_word_embeddings"}  # read and not applied
        applied |= {
            "attention_method",
            "zero_expert_type",
            "num_experts",
            "num_local_experts",
            "gating",
        }
        assert neutral_values(module).keys() & read <= applied


ROPE = {"rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def changed(name, **changes):
    """A tiny configuration with changes to its text model; None removes a key."""
    config = json.loads(json.dumps(CONFIGS[name]))
    text = config.get("text_config", config)
    text.update(changes)
    for key in [key for key, value in changes.items() if value is None]:
        del text[key]
    return config


def rope_of(config):
    made = arguments(read_target_config(config, "a file").values)
    return made["rope_theta"], made["rope_scaling"]


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_theta": 500.0, "rope_scaling": LINEAR},
        {"rope_theta": None, "rope_scaling": {**LINEAR, **ROPE}},
        {"rope_theta": None, "rope_parameters": {**LINEAR, **ROPE}},
        {"rope_theta": 500.0, "rope_parameters": LINEAR},
        {"rope_theta": 500.0, "rope_parameters": {**LINEAR, **ROPE}, "rope_scaling": LINEAR},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", **ROPE},
         "rope_scaling": LINEAR},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_every_spelling_of_a_scaled_rotary_embedding_is_read(name, spelling):
    """Only one spelling worked per family; the others fell back to defaults."""
    assert rope_of(changed(name, **spelling)) == (500.0, LINEAR)


@pytest.mark.parametrize(
    ("name", "changes", "error", "words"),
    [
        ("qwen2", {"rope_theta": None}, BadCheckpoint, "lacks rope_theta"),
        ("llama", {"rope_scaling": "yarn"}, BadCheckpoint, "rope_scaling is 'yarn'"),
        ("llama", {"rope_parameters": 2}, BadCheckpoint, "rope_parameters is 2"),
        ("llama", {"rope_theta": "x"}, BadCheckpoint, "rope_theta is 'x'"),
        ("llama", {"rope_theta": 0}, BadCheckpoint, "rope_theta is 0"),
        ("llama", {"rope_parameters": ROPE}, BadCheckpoint, "rope_theta is 500.0 in one place"),
        ("llama", {"rope_scaling": LINEAR, "rope_parameters": YARN}, BadCheckpoint, "rope_types"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, BadCheckpoint, "lacks factor"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, UnsupportedModel, "'longrope'"),
        ("llama", {"rope_scaling": {**LINEAR, "alpha": 8}}, UnsupportedModel, "'alpha'"),
        ("llama", {"rope_scaling": {**YARN, "truncate": False}}, UnsupportedModel, "truncate"),
        ("llama", {"rope_scaling": {**YARN, "factor": 1.0, "attention_factor": 2.0}},
         UnsupportedModel, "attention_factor is 2"),
        ("laguna", {"gating": "per-element"}, UnsupportedModel, "gating to 'per-element'"),
        ("glm_moe_dsa", {"indexer_types": ["full", "shared", "full"]}, UnsupportedModel, "indexer"),
        ("qwen3_5", {"attn_output_gate": False}, UnsupportedModel, "attn_output_gate"),
        ("llama", {"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor"),
        ("llama", {"rope_parameters": {"full_attention": ROPE, "sliding_attention": LINEAR}},
         BadCheckpoint, "rope_theta is 500.0 in one place"),
        ("qwen3_moe", {"rope_scaling": YARN}, UnsupportedModel, "rope_type is yarn; qwen3_moe"),
        ("glm4_moe", {"rope_scaling": LINEAR}, UnsupportedModel, "rope_type is linear"),
        ("minimax", {"rope_scaling": LINEAR}, UnsupportedModel, "rope_type is linear"),
        ("lfm2", {"rope_parameters": LINEAR}, UnsupportedModel, "rope_type is linear"),
        ("muse_glimmer", {"rope_scaling": YARN}, UnsupportedModel, "rope_type is yarn"),
        ("gemma4", {"rope_parameters": {**LINEAR, **ROPE}}, UnsupportedModel, "is linear"),
        ("laguna", {"rope_parameters": None}, BadCheckpoint, "lacks rope_theta"),
        ("llama", {"hidden_act": "gelu"}, UnsupportedModel, "hidden_act to 'gelu'"),
        ("qwen3", {"attention_bias": True}, UnsupportedModel, "attention_bias"),
        ("qwen3", {"use_sliding_window": True}, UnsupportedModel, "use_sliding_window"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 4},
         UnsupportedModel, "layer_types"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, UnsupportedModel, "attn_logit"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, UnsupportedModel, "final_logit"),
        ("gemma3_text", {"use_bidirectional_attention": True}, UnsupportedModel, "bidirectional"),
        ("deepseek_v3", {"rope_interleave": False}, UnsupportedModel, "rope_interleave"),
        ("gpt_oss", {"swiglu_limit": 5.0}, UnsupportedModel, "swiglu_limit"),
        ("minimax", {"attn_type_list": [0, 1, 1]}, UnsupportedModel, "attn_type_list"),
        ("qwen3_5", {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
         UnsupportedModel, "layer_types"),
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"] * 2,
                        "full_attention_interval": 4}, UnsupportedModel, "layer_types"),
        ("gemma4", {"per_layer_config": {"0": {"head_dim": 8}}}, UnsupportedModel, "per_layer"),
        ("llama", {"layer_types": 5}, BadCheckpoint, "layer_types is 5"),
        ("llama", {"hidden_size": 0}, BadCheckpoint, "hidden_size is 0"),
        ("llama", {"num_hidden_layers": "3"}, BadCheckpoint, "num_hidden_layers is '3'"),
        ("llama", {"max_position_embeddings": -1}, BadCheckpoint, "max_position_embeddings"),
    ],
)  # fmt: skip
def test_a_key_that_would_be_ignored_is_refused_by_name(name, changes, error, words):
    """An ignored key gives fluent text of another model."""
    with pytest.raises(error, match=words):
        read_target_config(changed(name, **changes), "a file")


def test_rope_keys_beside_a_text_model_are_refused():
    """They had no effect there; copies of the text model's values are harmless."""
    config = {**CONFIGS["qwen3_5"], "rope_scaling": YARN}
    with pytest.raises(BadCheckpoint, match="rope_scaling beside text_config"):
        read_target_config(config, "a file")
    text = config["text_config"]
    copied = {**CONFIGS["qwen3_5"], "rope_parameters": text["rope_parameters"]}
    read_target_config(copied, "a file")


def test_tied_embeddings_beside_a_text_model_are_used():
    """transformers reads the key at the top; mlx-lm asked for a head that the file lacks."""
    config = changed("qwen3_5", tie_word_embeddings=None)
    config["tie_word_embeddings"] = True
    assert arguments(read_target_config(config, "a file").values)["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("name", "changes", "length"),
    [
        ("qwen3", {}, 1024),
        ("qwen3", {"rope_scaling": YARN, "max_position_embeddings": 64}, 256),
        ("qwen3", {"rope_scaling": {"type": "yarn", "factor": 4.0},
                   "max_position_embeddings": 64}, 256),
        ("qwen3", {"rope_scaling": YARN, "max_position_embeddings": 80}, 256),
        ("qwen3", {"rope_scaling": LINEAR, "max_position_embeddings": 64}, 256),
        ("llama3", {"max_position_embeddings": 64}, 512),
        ("llama3", {}, 1024),
        ("qwen3", {"rope_scaling": {"type": "dynamic", "factor": 4.0},
                   "max_position_embeddings": 64}, 64),
        ("deepseek_v3", {"max_position_embeddings": 256}, 256),
        ("gpt_oss", {}, 1024),
        ("gpt_oss", {"max_position_embeddings": None}, 512),
        ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 1024),
    ],
)  # fmt: skip
def test_scaling_extends_the_context(name, changes, length):
    """YaRN added as model cards say left the context at the original length."""
    config = changed(name, **changes)
    assert read_target_config(config, "a file").context_length == length


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"attention_factor": 1.0},
        {"attention_factor": 1.3},
        {"mscale": 0.7},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.5, "mscale_all_dim": 1.0},
        {"mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 0.707, "attention_factor": 1.1},
    ],
)
def test_the_attention_factor_of_yarn_is_the_one_of_transformers(extra):
    """mlx-lm ignores attention_factor, which Laguna is published with, and a lone mscale."""
    from mlx_lm.models.rope_utils import initialize_rope

    stated = {**YARN, **extra}
    config = read_target_config(changed("llama", rope_scaling=stated), "a file")
    rotation = initialize_rope(16, 1e4, False, dict(config.text["rope_scaling"]), 64)
    expected = yarn_attention_factor(
        next(iter(read_rope({"rope_scaling": stated}, "").values())).scaling
    )
    assert rotation.mscale == pytest.approx(expected, rel=1e-6)


def test_laguna_is_read_as_published():
    """Its YaRN has an attention factor, and a value beside the tables of the layer types."""
    config = changed("laguna")
    config["rope_parameters"]["full_attention"]["attention_factor"] = 1.0
    config["rope_parameters"]["original_max_position_embeddings"] = 64
    config["gating"] = "per-head"
    made = arguments(read_target_config(config, "a file").values)
    assert made["rope_parameters"]["full_attention"]["mscale"] == pytest.approx(0)
    assert made["gating"] is True
