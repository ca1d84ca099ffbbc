"""The golden drafts: a small `config.json` per case, and the rounds that it runs.

`make_golden.py` writes the files. Configurations have the keys of published drafts. Every window
is at least as long as a block, as in every published draft: for shorter windows the two official
backends disagree.
"""

from dataclasses import dataclass
from typing import Any

HIDDEN, VOCABULARY, TARGET_LAYERS, MASK = 32, 260, 8, 257

SHORT_PROMPT = ((7, 8), (6, 8), (1, 8), (8, 8), (1, 8), (3, 5), (1, 2))
"""Block 8, window 12: the window fills in round 2, then one row arrives, then a whole block."""

LONG_PROMPT = ((31, 16), (1, 16), (16, 16), (2, 9))
"""Block 16, window 20: the prompt alone exceeds the window."""

OVER_WINDOW = ((14, 8), (1, 8), (8, 8), (1, 8), (3, 5))
"""Block 8, window 12: no row before the prompt is visible."""

IN_ORDER = ((14, 8), (3, 8), (8, 8), (2, 5))
"""Past the window, but never by one row: the official MLX cache then keeps its rows in order."""

FAR = ((70, 10), (1, 10), (5, 10))
"""Positions beyond the original length of scaled rotary embeddings."""


@dataclass(frozen=True)
class Case:
    """One golden folder.

    Args:
        rounds: (new context rows, block rows) of each round; the block includes the anchor.
        golden: the official backend whose numbers are expected.
        target_scale: the factor of the target's embeddings.
        temperature: sampling temperature of proposals (DFlash 2).
    """

    name: str
    guards: str
    config: dict[str, Any]
    rounds: tuple[tuple[int, int], ...]
    golden: str = "torch"
    tied: bool = False
    target_scale: float = 1.0
    temperature: float = 0.0


def published(
    layers: str, block: int, layer_ids: tuple[int, ...] = (1, 3, 5), **changes: Any
) -> dict[str, Any]:
    """Return a `config.json` with one layer per letter of `layers`: f(ull) or s(liding).

    Keys of `changes` that belong in `dflash_config` are given there as `dflash={...}`.
    """
    kinds = {"f": "full_attention", "s": "sliding_attention"}
    sliding = "s" in layers
    dflash = {
        "mask_token_id": MASK,
        "target_layer_ids": list(layer_ids),
        **changes.pop("dflash", {}),
    }
    config = {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": block,
        "dflash_config": dflash,
        "dtype": "float16",
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "layer_types": [kinds[letter] for letter in layers],
        "max_position_embeddings": 256,
        "max_window_layers": len(layers),
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": len(layers),
        "num_key_value_heads": 2,
        "num_target_layers": TARGET_LAYERS,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": (20 if block == 16 else 12) if sliding else None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": sliding,
        "vocab_size": VOCABULARY,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value != "absent"}


def second(layers: str, block: int, **changes: Any) -> dict[str, Any]:
    """Return a DFlash 2 `config.json`: block size nested, rotation under `rope_parameters`."""
    dflash = {
        "block_size": block,
        "conv_group_size": 8,
        "conv_kernel_size": 2,
        "selector_rank": 8,
        "selector_top_k": 16,
        **changes.pop("dflash", {}),
    }
    return published(
        layers,
        block,
        dflash=dflash,
        architectures=["DFlash2DraftModel"],
        auto_map={"AutoModel": "dflash.DFlash2DraftModel"},
        is_causal=False,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        **{"block_size": "absent", "rope_theta": "absent", "rope_scaling": "absent", **changes},
    )


YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}

SCALES = {
    "final_logit_softcapping": 5.0,
    "input_embedding_scale": 2.5,
    "output_multiplier": 2.0,
}

CASES = (
    Case(
        "full",
        "context cache, rotation offsets, and a block that is not causal",
        published("ff", 16),
        LONG_PROMPT,
    ),
    Case(
        "full_tied",
        "the head that is the embedding, one tap, block 10",
        published("ff", 10, layer_ids=(3,), tie_word_embeddings=True),
        ((9, 10), (1, 10), (10, 10), (4, 10), (1, 2)),
        tied=True,
    ),
    Case(
        "full_causal",
        "is_causal stated true: full layers become causal inside the block too",
        published("ff", 8, is_causal=True),
        SHORT_PROMPT,
    ),
    Case(
        "sliding",
        "v1 sliding layers: causal in the block, one row appended after the window is full",
        published("ss", 8),
        SHORT_PROMPT,
    ),
    Case(
        "sliding_open",
        "is_causal stated false: sliding layers see the whole block",
        published("ss", 8, is_causal=False),
        OVER_WINDOW,
    ),
    Case(
        "mixed",
        "sliding and full layers side by side, five taps, a prompt longer than the window",
        published("ssf", 16, layer_ids=(1, 2, 3, 4, 5)),
        LONG_PROMPT,
    ),
    Case(
        "scaled",
        "input_embedding_scale, output_multiplier and final_logit_softcapping together",
        published("ff", 8, dflash=SCALES),
        SHORT_PROMPT,
    ),
    Case(
        "bias",
        "attention_bias true on q, k, v and o",
        published("sf", 8, attention_bias=True),
        SHORT_PROMPT,
    ),
    Case(
        "yarn_scaling",
        "YaRN under rope_scaling, attention factor on, truncate left at its default",
        published("ff", 10, rope_scaling={"rope_type": "yarn", **YARN}),
        FAR,
    ),
    Case(
        "yarn_parameters",
        "YaRN under rope_parameters with truncate false, as gpt-oss spells it",
        published(
            "ff",
            10,
            rope_theta="absent",
            rope_scaling="absent",
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "truncate": False,
                **YARN,
            },
        ),
        FAR,
    ),
    Case(
        "llama3_scaling",
        "llama3 rotation under rope_scaling",
        published("ff", 10, rope_scaling={"rope_type": "llama3", **LLAMA3}),
        FAR,
    ),
    Case(
        "llama3_parameters",
        "llama3 rotation under rope_parameters, windowed",
        published(
            "sf",
            10,
            rope_theta="absent",
            rope_scaling="absent",
            rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3},
        ),
        FAR,
    ),
    Case(
        "target_scale",
        "a target that scales its embeddings (Gemma 4): the draft's input is scaled too",
        published("sf", 8, dflash={"final_logit_softcapping": 30.0}),
        IN_ORDER,
        golden="mlx",
        target_scale=HIDDEN**0.5,
    ),
    Case(
        "dflash2",
        "convolutions, selector, windowed layers that see the whole block",
        second("ss", 8),
        SHORT_PROMPT,
        temperature=0.7,
    ),
    Case(
        "dflash2_scaled",
        "DFlash 2 with block 16, a full layer and all three scalars",
        second("ssf", 16, dflash=SCALES),
        LONG_PROMPT,
        temperature=1.3,
    ),
)
