"""The `config.json` of a new draft, derived from its target and the user's overrides.

Follows the published drafts. Must not know weights, samples or runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.chat_template import Message
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.models.protocols import TargetShape

_MAX_LAYERS = 5
_MAX_TARGET_LAYERS = 5
"""Both as in the published drafts for Qwen3 (z-lab, arXiv 2602.06036)."""

_MAX_SHARE = 0.15
"""Upper bound of the draft's share of the target's parameters, embedding and head not counted.
Every round runs the draft once: for a small target, five layers cost more than they gain."""

_SMALL_TARGET = 1_000_000_000
"""Parameters below which the block size is 8: drafts of small targets accept fewer tokens."""

_DFLASH2 = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
}
"""The values of the published DFlash 2 drafts."""

_MASK_NAMES, _SPARE_NAMES = ("mask",), ("reserved", "unused", "extra", "placeholder", "dummy")
_CORPUS_NAMES = ("endoftext", "end_of_text", "eos", "bos", "unk", "<s>", "</s>")
"""Names of special tokens that pretraining text contains although conversations do not."""


@dataclass(frozen=True)
class DraftOverrides:
    """The user's choices for a draft's configuration; None derives the value from the target.

    `vocabulary` is the size of a reduced vocabulary with its own head. `dflash2` adds DFlash 2's
    convolutions and selector.
    """

    layers: int | None = None
    block_size: int | None = None
    vocabulary: int | None = None
    dflash2: bool = False

    def __post_init__(self) -> None:
        if self.layers is not None and not 1 <= self.layers <= 32:
            raise BadRequest(f"--layers is {self.layers}; it needs 1 to 32")
        if self.block_size is not None and not 2 <= self.block_size <= 64:
            raise BadRequest(
                f"--block-size is {self.block_size}; it needs 2 to 64 tokens, anchor included"
            )
        if self.vocabulary is not None and self.vocabulary < 2:
            raise BadRequest(f"--draft-vocab is {self.vocabulary}; it needs 2 or more")
        if self.vocabulary and self.dflash2:
            raise BadRequest(
                "--dflash2 selects from the target's whole vocabulary; leave out --draft-vocab"
            )


def default_target_layers(n_layers: int) -> tuple[int, ...]:
    """Return the target layers whose hidden states the draft reads: five, evenly spaced.

    The first is layer 1, the last the third from the end. Source: `build_target_layer_ids` of
    the official `dflash` package and SpecForge 0.2.0.
    """
    count = min(_MAX_TARGET_LAYERS, n_layers - 3)
    if count < 2:
        return (n_layers // 2,)
    first, last = 1, n_layers - 3
    return tuple(round(first + i * (last - first) / (count - 1)) for i in range(count))


def new_draft_config(
    shape: TargetShape,
    target_config: Mapping[str, Any],
    n_parameters: int,
    mask_token: int,
    overrides: DraftOverrides,
) -> dict[str, Any]:
    """Return the `config.json` of a new draft for a target of `n_parameters`.

    Raises:
        BadRequest: the target does not allow an override.
    """
    if overrides.vocabulary and overrides.vocabulary > shape.vocab_size:
        raise BadRequest(
            f"--draft-vocab is {overrides.vocabulary} and the target has {shape.vocab_size} "
            "tokens; it needs fewer, or leave it out"
        )
    config = _config_without_layers(shape, target_config, mask_token, overrides)
    body = n_parameters - 2 * shape.vocab_size * shape.hidden_size
    if body <= 0 or target_config.get("tie_word_embeddings", False):
        body = n_parameters - shape.vocab_size * shape.hidden_size
    layers = overrides.layers or _layers_within(config, _MAX_SHARE * body)
    config |= {
        "block_size": overrides.block_size or (8 if n_parameters < _SMALL_TARGET else 16),
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
    }
    read_draft_config(config, "the new draft")
    return config


def _config_without_layers(
    shape: TargetShape,
    target_config: Mapping[str, Any],
    mask_token: int,
    overrides: DraftOverrides,
) -> dict[str, Any]:
    """Return the keys of the configuration that do not depend on the number of layers."""
    inner = target_config.get("text_config") or target_config
    dflash: dict[str, Any] = {
        "mask_token_id": mask_token,
        "target_layer_ids": list(default_target_layers(shape.n_layers)),
    }
    if cap := inner.get("final_logit_softcapping"):
        dflash["final_logit_softcapping"] = cap
    if overrides.dflash2:
        dflash |= {**_DFLASH2, "is_causal": False}
        dflash["conv_group_size"] = _largest_divisor(shape.hidden_size, _DFLASH2["conv_group_size"])
    if overrides.vocabulary and overrides.vocabulary < shape.vocab_size:
        dflash["draft_vocab_size"] = overrides.vocabulary
    return {
        "architectures": ["DFlash2DraftModel" if overrides.dflash2 else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "num_target_layers": shape.n_layers,
        "intermediate_size": _intermediate_size(inner, shape.hidden_size),
        **_attention_heads(inner, shape.hidden_size),
        "rms_norm_eps": float(inner.get("rms_norm_eps") or 1e-6),
        "rope_theta": _rope_theta(inner),
        "rope_scaling": None,
        "max_position_embeddings": shape.context_length,
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": None,
        "dtype": "bfloat16",
        "dflash_config": dflash,
    }


def _intermediate_size(inner: Mapping[str, Any], hidden: int) -> int:
    """Return the target's feed-forward size, or 3 * hidden where that is the size of one expert."""
    size = inner.get("intermediate_size")
    dense = isinstance(size, int) and hidden <= size <= 8 * hidden
    return size if dense and size else 3 * hidden


def _attention_heads(inner: Mapping[str, Any], hidden: int) -> dict[str, int]:
    """Return the target's head counts and size, or usual ones for latent or other attention."""
    heads, kv_heads = inner.get("num_attention_heads"), inner.get("num_key_value_heads")
    heads = heads if isinstance(heads, int) else max(1, hidden // 128)
    size = inner.get("head_dim") or hidden // heads
    latent = inner.get("kv_lora_rank") or heads * size > 4 * hidden
    if latent or size % 2:
        size = 128 if hidden % 128 == 0 else 64
        heads, kv_heads = max(1, hidden // size), None
    if not isinstance(kv_heads, int) or heads % kv_heads:
        kv_heads = heads // 4 if heads % 4 == 0 else heads
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size}


def _rope_theta(inner: Mapping[str, Any]) -> float:
    nested = inner.get("rope_parameters") or inner.get("rope_scaling") or {}
    return float(inner.get("rope_theta") or nested.get("rope_theta") or 1e4)


def _largest_divisor(size: int, limit: int) -> int:
    return next(count for count in range(limit, 0, -1) if size % count == 0)


def _layers_within(config: Mapping[str, Any], n_parameters: float) -> int:
    """Return how many layers, 1 to 5, fit into `n_parameters` together with the projection."""
    one = {**config, "block_size": 2, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    draft = read_draft_config(one, "the new draft")
    projection = draft.feature_size * draft.hidden_size
    return max(1, min(_MAX_LAYERS, int((n_parameters - projection) // _layer_parameters(draft))))


def _layer_parameters(draft: DraftConfig) -> int:
    """Return the number of parameters of one layer without its norms."""
    attention = 2 * draft.head_dim * (draft.num_attention_heads + draft.num_key_value_heads)
    return draft.hidden_size * (attention + 3 * draft.intermediate_size)


def choose_mask_token(tokenizer: Tokenizer, vocab_size: int) -> int:
    """Return the mask token for a new draft: a token that text never contains.

    The first match of: a token named mask; a reserved or unused token; an id of the model after
    the tokenizer's last; another special token that conversations do not contain; the padding
    token. End tokens are never chosen.

    Raises:
        BadRequest: the tokenizer has no such token.
    """
    used = {*tokenizer.eos_token_ids, *chain.from_iterable(_sample_conversations(tokenizer))}
    pad = tokenizer.pad_id
    free = {
        index: text.lower()
        for index, text in sorted(tokenizer.special_tokens.items())
        if index not in used and index < vocab_size and not _in_corpora(text.lower())
    }
    for names in (_MASK_NAMES, _SPARE_NAMES):
        for index, text in free.items():
            if any(name in text for name in names):
                return index
    if tokenizer.n_ids < vocab_size:
        return tokenizer.n_ids
    for index in free:
        if index != pad:
            return index
    if pad is not None and pad not in used:
        return pad
    raise BadRequest(
        "the tokenizer has no token for the mask (a mask, reserved, special or padding token that "
        "text never contains); choose another target, or give a draft for this one with --init"
    )


def _in_corpora(name: str) -> bool:
    return any(part in name for part in _CORPUS_NAMES)


def _sample_conversations(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield short conversations in token ids, in every form that the chat template accepts."""
    yield tokenizer.encode("Hello")
    if not tokenizer.has_template:
        return
    user: Message = {"role": "user", "content": "Hello"}
    reply: Message = {"role": "assistant", "content": "Hi"}
    system: Message = {"role": "system", "content": "Be kind"}
    for messages in ([user], [user, reply, user], [system, user, reply, user]):
        for thinking in (None, True, False) if tokenizer.has_thinking else (None,):
            try:
                yield tokenizer.render(messages, thinking)
            except BadRequest:
                continue  # some templates refuse a system message
