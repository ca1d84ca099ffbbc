"""What a new draft looks like: a `config.json` from a target and a few wishes.

The published drafts' habits, carried over to any target: the target's own heads and feed-forward
width, five layers, taps spread evenly. What is written is what `read_draft_config` reads back,
so a draft trained here has no private meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.errors import BadRequest
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.models.protocols import TargetShape

_LAYERS = 5
_TAPS = 5
_SHARE = 0.15
"""Most that a draft may have of its target's parameters, embedding and head left out: a round
pays for the draft once, and for a small target five layers cost more than they bring."""

_SMALL = 1_000_000_000
"""Parameters below which a target gets blocks of 8: its rounds accept less."""

_SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
"""What the published DFlash 2 drafts have."""


@dataclass(frozen=True)
class Wishes:
    """What a user may choose of a draft's shape; None leaves it to the target.

    `vocabulary` is the size of a reduced vocabulary with a head of its own, `second` asks for
    DFlash 2's convolutions and selector.
    """

    layers: int | None = None
    block: int | None = None
    vocabulary: int | None = None
    second: bool = False

    def __post_init__(self) -> None:
        if self.layers is not None and not 1 <= self.layers <= 32:
            raise BadRequest(f"--layers is {self.layers}; it needs 1 to 32")
        if self.block is not None and not 2 <= self.block <= 64:
            raise BadRequest(
                f"--block-size is {self.block}; it needs 2 to 64 tokens, the anchor included"
            )
        if self.vocabulary is not None and self.vocabulary < 2:
            raise BadRequest(f"--draft-vocab is {self.vocabulary}; it needs 2 or more")
        if self.vocabulary and self.second:
            raise BadRequest(
                "--dflash2 selects from the target's whole vocabulary; leave out --draft-vocab"
            )


def tap_layers(n_layers: int) -> tuple[int, ...]:
    """Return the layers of a target to tap: five from the second to the third last, evenly.

    Source: `build_target_layer_ids` of the official `dflash` package and SpecForge 0.2.0.
    """
    count = min(_TAPS, n_layers - 3)
    if count < 2:
        return (n_layers // 2,)
    first, last = 1, n_layers - 3
    return tuple(round(first + i * (last - first) / (count - 1)) for i in range(count))


def draft_shape(
    shape: TargetShape,
    target_config: Mapping[str, Any],
    n_parameters: int,
    mask_token: int,
    wishes: Wishes,
) -> dict[str, Any]:
    """Return the `config.json` of a new draft for a target of `n_parameters`.

    Raises:
        BadRequest: a wish that this target does not allow.
    """
    if wishes.vocabulary and wishes.vocabulary > shape.vocab_size:
        raise BadRequest(
            f"--draft-vocab is {wishes.vocabulary} and the target has {shape.vocab_size} tokens; "
            "it needs fewer, or leave it out"
        )
    config = _config(shape, target_config, mask_token, wishes)
    body = n_parameters - 2 * shape.vocab_size * shape.hidden_size
    if body <= 0 or target_config.get("tie_word_embeddings", False):
        body = n_parameters - shape.vocab_size * shape.hidden_size
    layers = wishes.layers or _layers_within(config, _SHARE * body)
    config |= {
        "block_size": wishes.block or (8 if n_parameters < _SMALL else 16),
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
    }
    read_draft_config(config, "the new draft")
    return config


def _config(
    shape: TargetShape, target_config: Mapping[str, Any], mask_token: int, wishes: Wishes
) -> dict[str, Any]:
    """Return the parts of a configuration that do not depend on its layers."""
    inner = target_config.get("text_config") or target_config
    drafting: dict[str, Any] = {
        "mask_token_id": mask_token,
        "target_layer_ids": list(tap_layers(shape.n_layers)),
    }
    if cap := inner.get("final_logit_softcapping"):
        drafting["final_logit_softcapping"] = cap
    if wishes.second:
        drafting |= {**_SECOND, "is_causal": False}
        drafting["conv_group_size"] = _divisor(shape.hidden_size, _SECOND["conv_group_size"])
    if wishes.vocabulary and wishes.vocabulary < shape.vocab_size:
        drafting["draft_vocab_size"] = wishes.vocabulary
    return {
        "architectures": ["DFlash2DraftModel" if wishes.second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "num_target_layers": shape.n_layers,
        "intermediate_size": _feed_forward(inner, shape.hidden_size),
        **_attention(inner, shape.hidden_size),
        "rms_norm_eps": float(inner.get("rms_norm_eps") or 1e-6),
        "rope_theta": _rope_theta(inner),
        "rope_scaling": None,
        "max_position_embeddings": shape.context_length,
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": None,
        "dtype": "bfloat16",
        "dflash_config": drafting,
    }


def _feed_forward(inner: Mapping[str, Any], hidden: int) -> int:
    """Return the target's width where it is an ordinary one; a router's experts are not."""
    width = inner.get("intermediate_size")
    ordinary = isinstance(width, int) and hidden <= width <= 8 * hidden
    return width if ordinary and width else 3 * hidden


def _attention(inner: Mapping[str, Any], hidden: int) -> dict[str, int]:
    """Return the target's heads, or ordinary ones where it attends in another way."""
    heads, grouped = inner.get("num_attention_heads"), inner.get("num_key_value_heads")
    heads = heads if isinstance(heads, int) else max(1, hidden // 128)
    size = inner.get("head_dim") or hidden // heads
    latent = inner.get("kv_lora_rank") or heads * size > 4 * hidden
    if latent or size % 2:
        size = 128 if hidden % 128 == 0 else 64
        heads, grouped = max(1, hidden // size), None
    if not isinstance(grouped, int) or heads % grouped:
        grouped = heads // 4 if heads % 4 == 0 else heads
    return {"num_attention_heads": heads, "num_key_value_heads": grouped, "head_dim": size}


def _rope_theta(inner: Mapping[str, Any]) -> float:
    nested = inner.get("rope_parameters") or inner.get("rope_scaling") or {}
    return float(inner.get("rope_theta") or nested.get("rope_theta") or 1e4)


def _divisor(size: int, most: int) -> int:
    return next(count for count in range(most, 0, -1) if size % count == 0)


def _layers_within(config: Mapping[str, Any], n_parameters: float) -> int:
    """Return how many layers fit into `n_parameters` beside the taps' projection, at most five."""
    one = {**config, "block_size": 2, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    draft = read_draft_config(one, "the new draft")
    fusion = draft.feature_size * draft.hidden_size
    return max(1, min(_LAYERS, int((n_parameters - fusion) // layer_parameters(draft))))


def layer_parameters(draft: DraftConfig) -> int:
    """Return the parameters of one layer, norms left out."""
    attention = 2 * draft.head_dim * (draft.num_attention_heads + draft.num_key_value_heads)
    return draft.hidden_size * (attention + 3 * draft.intermediate_size)
