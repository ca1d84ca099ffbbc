"""Keys of a draft's configuration that change its mathematics, with their neutral values.

A draft that runs with one of these keys ignored has almost no token accepted.
"""

from collections.abc import Mapping
from typing import Any

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.system.foreign import quoted, shorten

_OFF = (None, False, 0)

_LAYERS: dict[str, tuple[Any, ...]] = {
    "hidden_act": (None, "silu"),
    "mlp_bias": _OFF,
    "use_qk_norm": (None, True),
    "partial_rotary_factor": (None, 1.0),
    "rope_traditional": _OFF,
    "rope_interleave": _OFF,
    "attn_logit_softcapping": _OFF,
    "query_pre_attn_scalar": _OFF,
    "attention_value_scale": (None, 1.0),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "attention_multiplier": _OFF,
    "logits_scaling": (None, 1.0),
    "num_experts": _OFF,
    "n_routed_experts": _OFF,
    "kv_lora_rank": _OFF,
}
"""Keys of the transformer layers. Other keys there, apart from sizes, do not affect inference."""

_DRAFTING: dict[str, tuple[Any, ...]] = {
    "sample_from_anchor": _OFF,
    "markov_rank": _OFF,
    "enable_confidence_head": _OFF,
    "confidence_head": _OFF,
    "shift_label": _OFF,
    "projector_type": (None, "dflash"),
    "causal": (None, False),
    "dflash_query_causal": (None,),
    "draft_window_size": (None,),
    "use_swa": (None,),
}
"""Keys of other draft kinds: DSpark samples from the anchor and has a Markov head, Domino has a
GRU."""

_KNOWN = {
    "attention_sink_bias",
    "block_size",
    "conv_group_size",
    "conv_kernel_size",
    "draft_vocab_size",
    "final_logit_softcapping",
    "input_embedding_scale",
    "is_causal",
    "mask_token",
    "mask_token_id",
    "num_target_layers",
    "output_multiplier",
    "runtime_block_size",
    "selector_rank",
    "selector_top_k",
    "target_hidden_size",
    "target_layer_ids",
}
"""Supported keys of `dflash_config`; every key of that section changes the mathematics."""


def refuse_other_mathematics(
    layers: Mapping[str, Any], drafting: Mapping[str, Any], source: str
) -> None:
    """Refuse a draft whose transformer `layers` or `drafting` keys need unsupported mathematics.

    Raises:
        UnsupportedModel: a key has a value other than its neutral one; the key is named.
    """
    for section, table in ((layers, _LAYERS | _DRAFTING), (drafting, _DRAFTING)):
        for key, neutral in table.items():
            if section.get(key) not in neutral:
                raise UnsupportedModel(
                    f"{source} sets {key} to {quoted(section[key])}, which changes the draft's "
                    f"mathematics; it needs to be {_spelled(neutral)}. "
                    "Use a DFlash or DFlash 2 draft, or --draft none"
                )
    if layers.get("dflash_config") is drafting:
        unknown = sorted(drafting.keys() - _KNOWN - _DRAFTING.keys())
        if unknown:
            raise UnsupportedModel(
                f"{source} has unknown keys in dflash_config: {shorten(', '.join(unknown))}; each "
                "key of that section changes the draft's mathematics. Use another draft, or "
                "--draft none"
            )


def _spelled(neutral: tuple[Any, ...]) -> str:
    stated = [repr(value) for value in neutral if value]
    return " or ".join(["absent", *stated])
