"""The configuration of a draft: every value that its forward pass depends on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Attention = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True)
class ConvolutionConfig:
    """DFlash 2's grouped dynamic causal convolution: kernel size, and channels per group."""

    kernel_size: int
    group_size: int


@dataclass(frozen=True)
class SelectorConfig:
    """DFlash 2's candidate selector: rank of the codebooks, and candidates per position."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class DraftConfig:
    """Dimensions and semantics of one draft. Sizes are in elements, ids are zero-based.

    Args:
        target_layer_ids: decoder layers of the target whose outputs the draft reads, in the
            order in which they are concatenated.
        block_size: tokens of a block, anchor included.
        in_block_causal: for each layer, whether a block row attends to earlier block rows only.
        sliding_window: W; a query at position p attends to context positions > p - W.
        num_target_layers: layers of the target, None where the file does not give it.
        draft_vocab_size: size of a reduced vocabulary with its own head, None for the target's.
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
    num_target_layers: int | None
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
    attention_sinks: bool = False
    convolution: ConvolutionConfig | None = None
    selector: SelectorConfig | None = None
    quantization: Mapping[str, Any] | None = None

    @property
    def feature_size(self) -> int:
        """Elements of one row of concatenated hidden states."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

    def context_rows(self, layer: int) -> int | None:
        """Return the number of context rows that `layer` attends to, None for all of them."""
        if self.layer_types[layer] == "full_attention":
            return None
        assert self.sliding_window is not None
        return self.sliding_window - 1
