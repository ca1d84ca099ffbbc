"""The DFlash draft: a few Qwen3-style layers that denoise one block over context features.

Every layer takes keys and values from context rows and block rows with the same projections;
context rows get no input norm, no query, no output and no feed-forward pass.
Letters: D hidden size, F elements of the target's hidden states, B rows of the block (anchor
first), n context rows, N blocks side by side, W window, H heads, d their size, V vocabulary.
Source: arXiv 2602.06036 section 3 and the official `dflash` package 0.1.0 (`model_mlx.py`).
"""

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.qwen3 import MLP

from dflash_mlx.cache import ContextCache, ContextLayer
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.rope import Rotation, make_rotation
from dflash_mlx.models.protocols import Block, FusedArgmax, Target, no_fused_argmax

Start = int | mx.array
"""Position of the first row, or the positions [N] of N blocks."""

Attend = Callable[[mx.array], mx.array]
"""Attention of normed block rows [N, B, D] over context and block."""


class DraftAttention(nn.Module):
    """Attention of block rows over context rows and the block itself."""

    def __init__(self, config: DraftConfig, index: int) -> None:
        super().__init__()
        dim, bias = config.hidden_size, config.attention_bias
        self.n_heads = config.num_attention_heads
        self.n_kv_heads = config.num_key_value_heads
        self.scale = config.head_dim**-0.5
        sliding = config.layer_types[index] == "sliding_attention"
        self.window = config.sliding_window if sliding else None
        self.causal = config.in_block_causal[index]
        self.q_proj = nn.Linear(dim, self.n_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, self.n_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, self.n_kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.n_heads * config.head_dim, dim, bias=bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        if config.attention_sinks:
            self.attention_sink_bias = mx.zeros((self.n_heads,))

    def __call__(
        self, rows: mx.array, rope: Rotation, start: int, context: ContextLayer
    ) -> mx.array:
        """Return [1, B, D] for normed block rows [1, B, D], the first at position `start`."""
        queries = self.queries(rows, rope, start)
        keys, values = self.keys_values(rows, rope, start)
        mixed = self.attend(queries, keys, values, start, context)
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(1, rows.shape[1], -1))

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        start: int,
        context: ContextLayer,
    ) -> mx.array:
        """Return [1, H, B, d] for rotated queries, keys and values of block rows."""
        keys, values = context.with_block(keys, values)
        mask = block_mask(context.positions, start, queries.shape[2], self.window, self.causal)
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask, sinks=self.sinks
        )

    def queries(self, rows: mx.array, rope: Rotation, start: Start) -> mx.array:
        """Return rotated queries [N, H, n, d] of rows [N, n, D] from position `start`."""
        split = self._heads(self.q_norm, self.q_proj(rows), self.n_heads)
        return rope(split, offset=start)

    def keys_values(
        self, rows: mx.array, rope: Rotation, start: Start
    ) -> tuple[mx.array, mx.array]:
        """Return rotated keys and values [N, H, n, d] of rows [N, n, D] from position `start`."""
        keys = self._heads(self.k_norm, self.k_proj(rows), self.n_kv_heads)
        values = self._heads(None, self.v_proj(rows), self.n_kv_heads)
        return rope(keys, offset=start), values

    @property
    def sinks(self) -> mx.array | None:
        """The attention sink of each head [H], None where the draft has none."""
        return self.attention_sink_bias if "attention_sink_bias" in self else None

    @staticmethod
    def _heads(norm: nn.Module | None, projected: mx.array, n_heads: int) -> mx.array:
        split = projected.reshape(*projected.shape[:2], n_heads, -1)
        if norm is not None:
            split = norm(split)
        return split.transpose(0, 2, 1, 3)


class DraftLayer(nn.Module):
    """Pre-norm attention and feed-forward over the block rows."""

    def __init__(self, config: DraftConfig, index: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, index)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, rows: mx.array, rope: Rotation, start: int, context: ContextLayer
    ) -> mx.array:
        """Return [1, B, D] for block rows [1, B, D], the first at position `start`."""
        return self.mix(rows, lambda normed: self.self_attn(normed, rope, start, context))

    def mix(self, rows: mx.array, attend: Attend) -> mx.array:
        """Return [N, B, D] for block rows [N, B, D], whose attention is `attend`."""
        rows = rows + attend(self.input_layernorm(rows))
        return rows + self.mlp(self.post_attention_layernorm(rows))


class DraftModel(nn.Module):
    """The weights of a draft and its forward pass; embedding and head are often the target's."""

    layer_class: type[DraftLayer] = DraftLayer

    def __init__(self, config: DraftConfig, own_embedding: bool, own_head: bool) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [self.layer_class(config, i) for i in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if own_head:
            rows = config.draft_vocab_size or config.vocab_size
            self.lm_head = nn.Linear(config.hidden_size, rows, bias=False)
        if config.draft_vocab_size:
            self.d2t = mx.zeros((config.draft_vocab_size,), mx.int32)
        self._rope = make_rotation(config)

    @property
    def rope(self) -> Rotation:
        """The rotation of queries and keys, the same in all layers."""
        return self._rope

    def extend(self, features: mx.array, position: int, context: ContextCache) -> None:
        """Append the keys and values of `features` [1, n, F] to every layer's context."""
        end = position + features.shape[1]
        if context.limit is not None:
            features = features[:, -context.limit :]
        rows = self.hidden_norm(self.fc(features))
        for layer, cache in zip(self.layers, context.layers, strict=True):
            new = rows if cache.limit is None else rows[:, -cache.limit :]
            start = end - new.shape[1]
            cache.append(*layer.self_attn.keys_values(new, self._rope, start), start)
        context.length = end

    def denoise(self, rows: mx.array, context: ContextCache) -> mx.array:
        """Return normed hidden rows [1, B - 1, D] of embedded block rows [1, B, D].

        The anchor's row predicts nothing and is dropped before the final norm.
        """
        start = context.length
        for layer, cache in zip(self.layers, context.layers, strict=True):
            rows = layer(rows, self._rope, start, cache)
        normed: mx.array = self.norm(rows[:, 1:])
        return normed


class BoundDraft:
    """A draft model with the target whose embedding and head it shares."""

    def __init__(self, model: DraftModel, target: Target) -> None:
        self.model = model
        self.target = target
        self.target_layer_ids = model.config.target_layer_ids
        self.block_size = model.config.block_size
        self.fused_argmax: FusedArgmax = no_fused_argmax
        """Finds the best token of each normed row [1, B - 1, D] without logits, or gives None."""
        # ids beyond the smaller vocabulary are padding
        self.n_ids = min(model.config.vocab_size, target.shape.vocab_size)
        self.head_dtype = target.embed(mx.array([[0]])).dtype
        """The type of the rows that the shared head gets: that of the target's embedding."""

    @property
    def dtype(self) -> mx.Dtype:
        """The type that the draft computes in, independent of its target.

        MLX promotes float16 with bfloat16 to float32, which would convert every weight each round.
        """
        dtype: mx.Dtype = self.model.norm.weight.dtype
        return dtype

    @property
    def row_bytes(self) -> int:
        """Bytes that one committed token adds to the context cache; windowed layers add none."""
        config = self.model.config
        growing = [i for i in range(config.num_hidden_layers) if config.context_rows(i) is None]
        width = 2 * config.num_key_value_heads * config.head_dim
        return len(growing) * width * int(self.dtype.size)

    def make_context(self) -> ContextCache:
        """Return an empty context cache."""
        config = self.model.config
        return ContextCache([config.context_rows(i) for i in range(config.num_hidden_layers)])

    def extend(self, features: mx.array, position: int, context: ContextCache) -> None:
        """Add context rows for `features` [1, n, F], the first at absolute `position`."""
        self.model.extend(features.astype(self.dtype), position, context)

    def with_sampling(self, temperature: float, seed: int) -> "BoundDraft":
        """Return this draft: it proposes the most likely tokens at any temperature.

        Its rows are predicted independently, so tokens sampled row by row rarely fit together.
        An argmax proposal is exact at any temperature.
        """
        return self

    def propose(self, anchor: int, n_rows: int, context: ContextCache) -> Block:
        """Propose the argmax at each of the `n_rows - 1` masked rows after `anchor`."""
        hidden = self.hidden(anchor, n_rows, context)
        hidden = self.for_head(hidden)
        if (found := self.fused_argmax(hidden)) is not None:
            return Block(self._ids(found.tokens[None, :, 0]), mx.isfinite(found.log_sum_exp).all())
        logits = self.logits(hidden)
        best = mx.max(logits, axis=-1)
        return Block(self._ids(mx.argmax(logits, axis=-1)), mx.isfinite(best).all())

    def hidden(self, anchor: int, n_rows: int, context: ContextCache) -> mx.array:
        """Return normed hidden rows [1, B - 1, D] of the block that starts with `anchor`."""
        return self.model.denoise(self.block_rows([anchor], n_rows), context)

    def block_rows(self, anchors: Sequence[int], n_rows: int) -> mx.array:
        """Return the embedded rows [N, B, D] of blocks: `anchors` [N], each followed by masks."""
        config = self.model.config
        masks = [config.mask_token_id] * (n_rows - 1)
        tokens = mx.array([[anchor, *masks] for anchor in anchors])
        embed = self.model.embed_tokens if "embed_tokens" in self.model else self.target.embed
        rows: mx.array = embed(tokens) * config.input_embedding_scale
        return rows.astype(self.dtype)

    def logits(self, hidden: mx.array) -> mx.array:
        """Return logits [1, B - 1, V] of normed hidden rows, over the ids that both models have."""
        head = self.model.lm_head if "lm_head" in self.model else self.target.head
        return self.shaped(head(hidden)[..., : self.n_ids])

    def shaped(self, projected: mx.array) -> mx.array:
        """Return `projected` hidden rows after the configured multiplier and soft cap."""
        config = self.model.config
        logits = projected * config.output_multiplier
        if config.final_logit_softcapping:
            cap = config.final_logit_softcapping
            logits = mx.tanh(logits / cap) * cap
        return logits

    def for_head(self, hidden: mx.array) -> mx.array:
        """Return hidden rows in the type of the head that projects them."""
        return hidden if "lm_head" in self.model else hidden.astype(self.head_dtype)

    def _ids(self, tokens: mx.array) -> mx.array:
        """Return the target's ids of the draft's `tokens`; they differ for a reduced vocabulary."""
        if "d2t" not in self.model:
            return tokens
        return (tokens + self.model.d2t[tokens]).astype(mx.int32)


def block_mask(
    positions: np.ndarray, start: int, n_rows: int, window: int | None, causal: bool
) -> mx.array | None:
    """Return the mask [B, n + B] of a block over its context, None where all is visible.

    A context key at position k is visible to a query at position q when q - k < W. A block key is
    visible to every query or, if `causal`, to queries not before it (official dflash 0.1.0,
    `DFlashAttention`).

    Args:
        positions: absolute positions [n] of the context rows.
        start: absolute position of the anchor.
        n_rows: B.
        window: W, None for no window.
        causal: whether the layer is causal inside the block.
    """
    queries = np.arange(start, start + n_rows)[:, None]
    context = np.ones((n_rows, len(positions)), bool)
    if window is not None:
        context = queries - positions[None] < window
    block = np.ones((n_rows, n_rows), bool)
    if causal:
        block = np.tril(block)
    mask = np.concatenate([context, block], axis=1)
    return None if mask.all() else mx.array(mask)
