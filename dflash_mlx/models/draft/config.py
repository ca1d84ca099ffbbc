"""What a draft is: one frozen object on which all of its mathematics depends."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    `num_target_layers` is None where the file does not say. `draft_vocab_size` is that of a
    reduced vocabulary with a head of its own, None for the target's.
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
        """Width of one row of concatenated taps."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

    def context_rows(self, layer: int) -> int | None:
        """Rows of context that layer `layer` can ever see; None where all of them."""
        if self.layer_types[layer] == "full_attention":
            return None
        assert self.sliding_window is not None
        return self.sliding_window - 1
