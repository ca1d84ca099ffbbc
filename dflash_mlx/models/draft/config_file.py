"""A draft's `config.json` into a `DraftConfig`; missing keys are named, never guessed.

Layouts: DFlash 1 and 2 (official `dflash` package 0.1.0, `model_mlx.load_draft`) and speculators
(0.9.0, `DFlashSpeculatorConfig`: nested layers, layer ids counted from the embedding's output).
"""

from collections.abc import Mapping
from typing import Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.draft.config import (
    Attention,
    ConvolutionConfig,
    DraftConfig,
    SelectorConfig,
)
from dflash_mlx.models.draft.config_keys import refuse_other_mathematics
from dflash_mlx.models.draft.config_values import ConfigValues
from dflash_mlx.models.rope_config import ALL_LAYERS, read_rope
from dflash_mlx.system.foreign import quoted

_ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel", "Qwen3DFlashDraftModel")
"""The third is the class of NVIDIA NeMo Automodel, which trains the same model."""
_KINDS = ("dflash", "dflash2")
_DRAFT_KEYS = ("dflash_config", "speculators_model_type", "target_layer_ids", "markov_rank")
_DRAFT_CLASS_PARTS = ("Draft", "Speculator", "DSpark")

_MAX_LAYERS, _MAX_BLOCK = 1000, 1024
"""A hundred times the published drafts' 8 layers and 16 tokens; larger numbers are damage, and a
list of that length would be allocated before the weights are read."""

_QWEN3_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
"""speculators writes only what differs from transformers' Qwen3Config (5.15.0)."""


def is_draft_config(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes a draft rather than a target."""
    return any(key in config for key in _DRAFT_KEYS) or any(
        part in name for name in class_names(config) for part in _DRAFT_CLASS_PARTS
    )


def class_names(config: Mapping[str, Any]) -> list[str]:
    """Return the class names under `architectures`; entries of other types are left out."""
    names = config.get("architectures")
    listed = names if isinstance(names, list) else [names]
    return [name for name in listed if isinstance(name, str)]


def read_draft_config(config: Mapping[str, Any], source: str = "config.json") -> DraftConfig:
    """Return the `DraftConfig` of a draft's `config.json`.

    Raises:
        BadCheckpoint: a key is missing or holds an impossible value.
        UnsupportedModel: the file describes another kind of model.
    """
    if "speculators_model_type" in config:
        return _read_speculators(config, source)
    return _read_published(config, source)


def _read_published(config: Mapping[str, Any], source: str) -> DraftConfig:
    architectures = class_names(config)
    if any("DSpark" in name for name in architectures):
        raise UnsupportedModel(
            f"{source} holds a DSpark draft ({', '.join(architectures)}); supported are DFlash and "
            "DFlash 2. Use a draft of those kinds, or --draft none"
        )
    if not any(name in _ARCHITECTURES for name in architectures):
        raise UnsupportedModel(
            f"{source} has architectures {quoted(architectures)}; a draft needs one of "
            f"{', '.join(_ARCHITECTURES)}. Give such a draft, or use --draft none"
        )
    nested = ConfigValues(config, source).section("dflash_config")
    refuse_other_mathematics(config, nested, source)

    def dflash(key: str, default: Any = None) -> Any:
        return nested.get(key, config.get(key, default))

    values = ConfigValues(config, source)
    common = _transformer(values)
    common |= {
        "block_size": values.whole("block_size", dflash("block_size"), 2, _MAX_BLOCK),
        "mask_token_id": values.whole("mask_token_id", dflash("mask_token_id"), minimum=0),
        "target_layer_ids": values.ids("target_layer_ids", dflash("target_layer_ids")),
        "num_target_layers": values.whole("num_target_layers", dflash("num_target_layers")),
        "input_embedding_scale": values.number(
            "input_embedding_scale", dflash("input_embedding_scale", 1.0)
        ),
        "output_multiplier": values.number("output_multiplier", dflash("output_multiplier", 1.0)),
        "final_logit_softcapping": values.optional_number(
            "final_logit_softcapping", dflash("final_logit_softcapping")
        ),
        "in_block_causal": _in_block_causal(common["layer_types"], _is_causal(values, dflash)),
        "target_hidden_size": values.optional_whole(
            "target_hidden_size", dflash("target_hidden_size")
        ),
        "attention_sinks": values.flag("attention_sink_bias", dflash("attention_sink_bias")),
        "draft_vocab_size": _reduced(values, dflash("draft_vocab_size"), common["vocab_size"]),
    }
    if "DFlash2DraftModel" in architectures:
        common |= _dflash2(values, dflash)
    return _checked(DraftConfig(**common), source)


def _read_speculators(config: Mapping[str, Any], source: str) -> DraftConfig:
    kind = config["speculators_model_type"]
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"{source} holds a speculators draft of kind {quoted(kind)}; supported are "
            f"{' and '.join(_KINDS)}. Use a DFlash draft, or --draft none"
        )
    layers = ConfigValues(config, source).section("transformer_layer_config")
    refuse_other_mathematics(layers, config, source)
    defaults = _QWEN3_DEFAULTS if layers.get("model_type", "qwen3") == "qwen3" else {}
    values = ConfigValues({**defaults, **layers}, source)
    common = _transformer(values)
    shifted = values.ids("aux_hidden_state_layer_ids", config.get("aux_hidden_state_layer_ids"))
    non_causal = config.get("sliding_window_non_causal", kind == "dflash2")
    common |= {
        "block_size": values.whole("block_size", config.get("block_size"), 2, _MAX_BLOCK),
        "mask_token_id": values.whole("mask_token_id", config.get("mask_token_id"), minimum=0),
        # speculators counts hidden states, of which number 0 is the embedding's output
        "target_layer_ids": tuple(index - 1 for index in shifted),
        "num_target_layers": values.optional_whole(
            "num_target_layers", config.get("num_target_layers")
        ),
        "in_block_causal": _in_block_causal(common["layer_types"], False if non_causal else None),
        "target_hidden_size": values.optional_whole(
            "target_hidden_size", config.get("target_hidden_size")
        ),
        "draft_vocab_size": _reduced(values, config.get("draft_vocab_size"), common["vocab_size"]),
    }
    if kind == "dflash2":
        common |= _dflash2(values, config.get)
    return _checked(DraftConfig(**common), source)


def _reduced(values: ConfigValues, stated: Any, vocab_size: int) -> int | None:
    """Return the size of a reduced vocabulary, None where it equals the target's."""
    if stated is None or stated == vocab_size:
        return None
    return values.whole("draft_vocab_size", stated)


def _dflash2(values: ConfigValues, get: Any) -> dict[str, Any]:
    """Return the fields that only DFlash 2 has."""

    def size(key: str) -> int:
        return values.whole(key, get(key))

    return {
        "convolution": ConvolutionConfig(size("conv_kernel_size"), size("conv_group_size")),
        "selector": SelectorConfig(size("selector_rank"), size("selector_top_k")),
    }


def _transformer(values: ConfigValues) -> dict[str, Any]:
    """Return the fields of the transformer layers, which every layout spells as Qwen3 does."""
    get = values.config.get
    layers = values.whole("num_hidden_layers", get("num_hidden_layers"), maximum=_MAX_LAYERS)
    ropes = read_rope(values.config, values.source)
    if (rope := ropes.get(ALL_LAYERS)) is None:
        raise UnsupportedModel(
            f"{values.source}: rope_parameters differ by layer type; a draft needs one rotary "
            "embedding. Use another draft, or --draft none"
        )
    if rope.partial_rotary_factor not in (None, 1.0):
        raise UnsupportedModel(
            f"{values.source} sets partial_rotary_factor to {rope.partial_rotary_factor}; a draft "
            "needs 1.0. Use another draft, or --draft none"
        )
    heads = values.whole("num_attention_heads", get("num_attention_heads"))
    hidden = values.whole("hidden_size", get("hidden_size"))
    types = get("layer_types")
    if types is None:
        types = ["full_attention"] * layers
    if (
        not isinstance(types, list)
        or len(types) != layers
        or any(kind not in ("full_attention", "sliding_attention") for kind in types)
    ):
        raise values.wrong(
            "layer_types", types, f"{layers} entries, each full_attention or sliding_attention"
        )
    window = get("sliding_window") if "sliding_attention" in types else None
    if "sliding_attention" in types:
        window = values.whole("sliding_window", window, minimum=2)
    return {
        "hidden_size": hidden,
        "intermediate_size": values.whole("intermediate_size", get("intermediate_size")),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": values.whole(
            "num_key_value_heads", get("num_key_value_heads", heads)
        ),
        "head_dim": values.whole("head_dim", get("head_dim", hidden // heads)),
        "vocab_size": values.whole("vocab_size", get("vocab_size")),
        "rms_norm_eps": values.number("rms_norm_eps", get("rms_norm_eps"), above=0),
        "rope_theta": values.number("rope_theta", rope.theta, above=0),
        "rope_scaling": None if rope.kind == "default" else rope.table(),
        "max_position_embeddings": values.whole(
            "max_position_embeddings", get("max_position_embeddings")
        ),
        "layer_types": tuple(types),
        "sliding_window": window,
        "attention_bias": values.flag("attention_bias", get("attention_bias")),
        "quantization": values.section("quantization")
        or values.section("quantization_config")
        or None,
    }


def _is_causal(values: ConfigValues, get: Any) -> bool | None:
    """Return the causality inside the block, in either spelling; None where it is not given."""
    is_causal = get("is_causal")
    # `causal` has been checked: it is absent or false
    if is_causal is None and get("causal") is False:
        return False
    return values.optional_flag("is_causal", is_causal)


def _in_block_causal(types: tuple[Attention, ...], is_causal: bool | None) -> tuple[bool, ...]:
    """Return the causality of each layer; by default sliding layers are causal in the block."""
    if is_causal is not None:
        return (bool(is_causal),) * len(types)
    return tuple(kind == "sliding_attention" for kind in types)


def _checked(draft: DraftConfig, source: str) -> DraftConfig:
    ids = draft.target_layer_ids
    if len(set(ids)) != len(ids):
        raise BadCheckpoint(
            f"{source}: target_layer_ids {quoted(list(ids))} repeat a layer; each layer can be "
            "given once. Use another draft, or --draft none"
        )
    depth = draft.num_target_layers
    outside = [index for index in ids if index < 0 or (depth is not None and index >= depth)]
    if outside:
        layers = "layers, which count from 0" if depth is None else f"layers 0 to {depth - 1}"
        raise BadCheckpoint(
            f"{source}: target_layer_ids {quoted(outside)} are outside the target's {layers}. Use "
            "another draft, or --draft none"
        )
    if draft.num_attention_heads % draft.num_key_value_heads:
        raise BadCheckpoint(
            f"{source}: num_attention_heads {draft.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {draft.num_key_value_heads}. Use another draft, or --draft none"
        )
    _check_dflash2(draft, source)
    return draft


def _check_dflash2(draft: DraftConfig, source: str) -> None:
    """Check the fields that only a DFlash 2 draft has."""
    convolution, selector = draft.convolution, draft.selector
    if convolution and draft.hidden_size % convolution.group_size:
        raise BadCheckpoint(
            f"{source}: conv_group_size {convolution.group_size} does not divide hidden_size "
            f"{draft.hidden_size}. Use another draft, or --draft none"
        )
    if selector and selector.top_k > draft.vocab_size:
        raise BadCheckpoint(
            f"{source}: selector_top_k is {selector.top_k}; it needs at most vocab_size "
            f"{draft.vocab_size}. Use another draft, or --draft none"
        )
    if selector and draft.draft_vocab_size:
        raise UnsupportedModel(
            f"{source}: draft_vocab_size is {draft.draft_vocab_size}; a draft with a selector "
            "needs the target's vocabulary. Use another draft, or --draft none"
        )
