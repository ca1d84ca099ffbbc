"""A draft's `config.json`, read into one frozen object.

Everything the draft's mathematics depends on comes from here; nothing is guessed. Keys that
would change the mathematics and that we do not implement are refused by name. The layouts:
published DFlash v1 and v2 (flat, `dflash_config` nested) and speculators (nested transformer
configuration, layer ids counted from the embedding output).
Source of the keys: the official `dflash` package 0.1.0 (`model_mlx.load_draft`) and speculators
0.9.0 (`DFlashSpeculatorConfig`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel

Attention = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True)
class ConvolutionConfig:
    """DFlash 2's grouped dynamic causal convolution: taps of the kernel, channels of a group."""

    kernel_size: int
    group_size: int


@dataclass(frozen=True)
class SelectorConfig:
    """DFlash 2's candidate selector: width of a codebook row, candidates per position."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class DraftConfig:
    """Shape and semantics of one draft. Sizes are in elements, ids are zero-based.

    `target_layer_ids[i]` names the decoder layer whose output is the i-th tap. `block_size`
    counts the anchor. `in_block_causal[l]` says whether layer l's block rows see only earlier
    block rows. `sliding_window` W: a query at position p sees context positions > p - W.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    layer_types: tuple[Attention, ...]
    in_block_causal: tuple[bool, ...]
    sliding_window: int | None = None
    rope_scaling: Mapping[str, Any] | None = None
    attention_bias: bool = False
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    target_hidden_size: int | None = None
    draft_vocab_size: int | None = None
    convolution: ConvolutionConfig | None = None
    selector: SelectorConfig | None = None
    quantization: Mapping[str, Any] | None = None

    @property
    def feature_size(self) -> int:
        """Width of one row of concatenated taps."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

    def context_rows(self, layer: int) -> int | None:
        """Rows of context that layer `layer` can ever see; None where all of them."""
        if self.layer_types[layer] == "full_attention":
            return None
        assert self.sliding_window is not None
        return self.sliding_window - 1


_ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
_REFUSED = ("attention_sink_bias", "sample_from_anchor", "markov_rank", "confidence_head")
"""Keys of related drafts (DSpark and others) whose mathematics is another."""


def is_draft_config(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` describes a draft rather than a target."""
    architectures = config.get("architectures") or []
    return (
        "dflash_config" in config
        or "speculators_model_type" in config
        or any("Draft" in name or "Speculator" in name for name in architectures)
    )


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
    architectures = config.get("architectures") or []
    if not any(name in _ARCHITECTURES for name in architectures):
        raise UnsupportedModel(
            f"{source} says architectures {architectures}; a draft needs one of "
            f"{', '.join(_ARCHITECTURES)}. Give a draft here, or use --draft none"
        )
    nested = config.get("dflash_config") or {}

    def dflash(key: str, default: Any = None) -> Any:
        return nested.get(key, config.get(key, default))

    if dflash("causal") is not None:
        raise UnsupportedModel(
            f"{source} sets 'causal' in dflash_config, which no published draft defines; "
            "we need 'is_causal' at the top level"
        )
    values = _Values(config, source)
    common = _transformer(values)
    taps = dflash("target_layer_ids")
    common |= {
        "block_size": values.whole("block_size", dflash("block_size")),
        "mask_token_id": values.whole("mask_token_id", dflash("mask_token_id"), minimum=0),
        "target_layer_ids": values.ids("target_layer_ids", taps),
        "num_target_layers": values.whole("num_target_layers", dflash("num_target_layers")),
        "input_embedding_scale": values.number(
            "input_embedding_scale", dflash("input_embedding_scale", 1.0)
        ),
        "output_multiplier": values.number("output_multiplier", dflash("output_multiplier", 1.0)),
        "final_logit_softcapping": values.optional_number(
            "final_logit_softcapping", dflash("final_logit_softcapping")
        ),
        "in_block_causal": _in_block_causal(common["layer_types"], dflash("is_causal")),
        "target_hidden_size": dflash("target_hidden_size"),
    }
    _refuse_others(dflash, source)
    if "DFlash2DraftModel" in architectures:
        common["convolution"] = ConvolutionConfig(
            values.whole("conv_kernel_size", dflash("conv_kernel_size")),
            values.whole("conv_group_size", dflash("conv_group_size")),
        )
        common["selector"] = SelectorConfig(
            values.whole("selector_rank", dflash("selector_rank")),
            values.whole("selector_top_k", dflash("selector_top_k")),
        )
    return _checked(DraftConfig(**common), source)


def _read_speculators(config: Mapping[str, Any], source: str) -> DraftConfig:
    kind = config["speculators_model_type"]
    if kind not in ("dflash", "dflash2"):
        raise UnsupportedModel(
            f"{source} holds a speculators draft of kind {kind!r}; we run 'dflash' and 'dflash2'"
        )
    values = _Values({**config, **(config.get("transformer_layer_config") or {})}, source)
    common = _transformer(values)
    shifted = values.ids("aux_hidden_state_layer_ids", config.get("aux_hidden_state_layer_ids"))
    non_causal = config.get("sliding_window_non_causal", kind == "dflash2")
    common |= {
        "block_size": values.whole("block_size", config.get("block_size")),
        "mask_token_id": values.whole("mask_token_id", config.get("mask_token_id"), minimum=0),
        # speculators counts hidden states, of which number 0 is the embedding's output
        "target_layer_ids": tuple(index - 1 for index in shifted),
        "num_target_layers": values.whole(
            "num_target_layers", config.get("num_target_layers", max(shifted) + 1)
        ),
        "in_block_causal": _in_block_causal(common["layer_types"], False if non_causal else None),
        "target_hidden_size": config.get("target_hidden_size"),
        "draft_vocab_size": config.get("draft_vocab_size"),
    }
    _refuse_others(lambda key, default=None: config.get(key, default), source)
    if kind == "dflash2":
        common["convolution"] = ConvolutionConfig(
            values.whole("conv_kernel_size", config.get("conv_kernel_size")),
            values.whole("conv_group_size", config.get("conv_group_size")),
        )
        common["selector"] = SelectorConfig(
            values.whole("selector_rank", config.get("selector_rank")),
            values.whole("selector_top_k", config.get("selector_top_k")),
        )
    return _checked(DraftConfig(**common), source)


def _refuse_others(value: Any, source: str) -> None:
    for key in _REFUSED:
        if value(key):
            raise UnsupportedModel(
                f"{source} sets {key!r}, which changes the draft's mathematics and is not "
                "supported here; use a DFlash or DFlash 2 draft, or --draft none"
            )


def _transformer(values: "_Values") -> dict[str, Any]:
    """Return the keys that every layout shares with an ordinary Qwen3 configuration."""
    get = values.config.get
    layers = values.whole("num_hidden_layers", get("num_hidden_layers"))
    rope = get("rope_parameters") or get("rope_scaling")
    theta = get("rope_theta")
    if theta is None and rope:
        theta = rope.get("rope_theta")
    heads = values.whole("num_attention_heads", get("num_attention_heads"))
    hidden = values.whole("hidden_size", get("hidden_size"))
    types = tuple(get("layer_types") or ["full_attention"] * layers)
    if len(types) != layers or set(types) - {"full_attention", "sliding_attention"}:
        raise BadCheckpoint(
            f"{values.source}: layer_types is {list(types)}; it needs {layers} entries, each "
            "full_attention or sliding_attention"
        )
    window = get("sliding_window") if "sliding_attention" in types else None
    if "sliding_attention" in types:
        window = values.whole("sliding_window", window, minimum=2)
    activation = get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"{values.source}: hidden_act is {activation!r}; we run 'silu'")
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
        "rms_norm_eps": values.number("rms_norm_eps", get("rms_norm_eps")),
        "rope_theta": values.number("rope_theta", theta),
        "rope_scaling": dict(rope) if rope else None,
        "max_position_embeddings": values.whole(
            "max_position_embeddings", get("max_position_embeddings")
        ),
        "layer_types": types,
        "sliding_window": window,
        "attention_bias": bool(get("attention_bias", False)),
        "quantization": get("quantization") or get("quantization_config"),
    }


def _in_block_causal(types: tuple[Attention, ...], stated: bool | None) -> tuple[bool, ...]:
    """Sliding layers are causal inside the block and full ones are not, unless stated."""
    if stated is not None:
        return (bool(stated),) * len(types)
    return tuple(kind == "sliding_attention" for kind in types)


def _checked(draft: DraftConfig, source: str) -> DraftConfig:
    taps = draft.target_layer_ids
    if len(set(taps)) != len(taps):
        raise BadCheckpoint(
            f"{source}: target_layer_ids {list(taps)} repeat; each tap is one layer"
        )
    outside = [index for index in taps if not 0 <= index < draft.num_target_layers]
    if outside:
        raise BadCheckpoint(
            f"{source}: target_layer_ids {outside} lie outside the target's layers "
            f"0 to {draft.num_target_layers - 1}; the file does not describe this pair"
        )
    if draft.num_attention_heads % draft.num_key_value_heads:
        raise BadCheckpoint(
            f"{source}: {draft.num_attention_heads} query heads do not share "
            f"{draft.num_key_value_heads} key/value heads evenly"
        )
    if draft.block_size < 2:
        raise BadCheckpoint(f"{source}: block_size is {draft.block_size}; it needs 2 or more")
    return draft


class _Values:
    """Reads values out of a configuration, naming the key when one is missing or wrong."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config = config
        self.source = source

    def whole(self, key: str, value: Any, minimum: int = 1) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._wrong(key, value, f"a whole number >= {minimum}")
        return value

    def number(self, key: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, value, "a number")
        return float(value)

    def optional_number(self, key: str, value: Any) -> float | None:
        return None if value is None else self.number(key, value)

    def ids(self, key: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise self._wrong(key, value, "a list of layer numbers (it is never guessed)")
        return tuple(self.whole(key, item, minimum=0) for item in value)

    def _wrong(self, key: str, value: Any, need: str) -> BadCheckpoint:
        got = "missing" if value is None else repr(value)
        return BadCheckpoint(f"{self.source}: {key} is {got}; it needs {need}")
