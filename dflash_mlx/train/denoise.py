"""The draft's forward pass over many blocks of one sequence at once.

Every block sees the context strictly before its anchor and itself, never another block, so N
blocks share one set of context keys and values. What a row sees is what it would see in
decoding; `visible_context` and `visible_block` state it, and a test holds them against the mask
of the runtime block by block.

Letters: N blocks, B rows of a block, S context rows, H query heads, G key/value heads, D hidden
size. Source: arXiv 2602.06036, section 3.2.
"""

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from mlx.nn.utils import checkpoint

from dflash_mlx.models.draft.dflash import DraftAttention, DraftLayer, DraftModel
from dflash_mlx.models.draft.rope import Rotation

Denoising = Callable[[mx.array, mx.array], mx.array]


def denoise(
    model: DraftModel,
    embedded: mx.array,
    features: mx.array,
    anchors: np.ndarray,
    *,
    checkpointing: bool = False,
) -> mx.array:
    """Return normed hidden rows [N, B - 1, D] of embedded block rows [N, B, D].

    `features` [1, n, F] are the sequence's, from its first token on; only those before the last
    of `anchors` [N] are read. With `checkpointing` a layer's inner values are computed again for
    its gradient and not kept.
    """
    n_context = max(int(anchors.max()), 1)
    context = model.hidden_norm(model.fc(features[:, :n_context]))
    places = _Places(anchors, embedded.shape[1], n_context)
    rows = embedded
    for layer in model.layers:
        run = _denoising(layer, model.rope, places)
        rows = checkpoint(layer, run)(rows, context) if checkpointing else run(rows, context)
    normed: mx.array = model.norm(rows[:, 1:])
    return normed


def visible_context(
    anchors: np.ndarray, n_rows: int, n_context: int, window: int | None
) -> np.ndarray:
    """Return [N, B, S]: whether a block's row sees a context row."""
    keys = np.arange(n_context)
    seen = np.broadcast_to((keys < anchors[:, None])[:, None], (len(anchors), n_rows, n_context))
    if window is None:
        return seen
    queries = anchors[:, None] + np.arange(n_rows)
    return seen & (queries[:, :, None] - keys < window)


def visible_block(n_rows: int, causal: bool) -> np.ndarray:
    """Return [B, B]: whether a row of a block sees another of the same block."""
    everything = np.ones((n_rows, n_rows), bool)
    return np.tril(everything) if causal else everything


class _Places(NamedTuple):
    """Where the blocks stand: positions [N] of their anchors, B, S."""

    anchors: np.ndarray
    n_rows: int
    n_context: int


def _denoising(layer: DraftLayer, rope: Rotation, places: _Places) -> Denoising:
    """Return `layer` as a function of block rows [N, B, D] and context [1, S, D]."""

    def run(rows: mx.array, context: mx.array) -> mx.array:
        return layer.mix(rows, _Scene(layer.self_attn, rope, context, places))

    return run


class _Scene:
    """What one layer's block rows attend to: context rows before their anchor, and their block."""

    def __init__(
        self, attention: DraftAttention, rope: Rotation, context: mx.array, places: _Places
    ) -> None:
        anchors, n_rows, n_context = places
        self.attention = attention
        self.rope = rope
        self.starts = mx.array(anchors)
        self.keys, self.values = attention.keys_values(context, rope, 0)
        seen = visible_context(anchors, n_rows, n_context, attention.window)
        block = visible_block(n_rows, attention.causal)
        both = np.concatenate([seen, np.broadcast_to(block, (len(anchors), *block.shape))], axis=2)
        self.hidden = mx.array(np.where(both, 0, -np.inf).astype(np.float32))

    def __call__(self, rows: mx.array) -> mx.array:
        """Return attended rows [N, B, D] of normed block rows [N, B, D]."""
        attention = self.attention
        queries = attention.queries(rows, self.rope, self.starts)
        keys, values = attention.keys_values(rows, self.rope, self.starts)
        n_blocks, n_heads, n_rows, dim = queries.shape
        groups = keys.shape[1]
        queries = queries.reshape(n_blocks, groups, -1, dim) * attention.scale
        # the same context for all blocks: one product for each key/value head
        over = queries.transpose(1, 0, 2, 3).reshape(groups, -1, dim) @ _turned(self.keys[0])
        over = over.reshape(groups, n_blocks, -1, over.shape[-1]).transpose(1, 0, 2, 3)
        scores = mx.concatenate([over, queries @ _turned(keys)], axis=-1)
        scores = scores.reshape(n_blocks, n_heads, n_rows, -1).astype(mx.float32)
        weights = self._weights(scores + self.hidden[:, None]).astype(rows.dtype)
        mixed = self._mixed(weights, values)
        return attention.o_proj(mixed.transpose(0, 2, 1, 3).reshape(n_blocks, n_rows, -1))

    def _weights(self, scores: mx.array) -> mx.array:
        """Return attention weights of `scores` [N, H, B, S + B]; a sink takes its share away."""
        sinks = self.attention.sinks
        if sinks is None:
            return mx.softmax(scores, axis=-1)
        column = mx.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
        joined = mx.concatenate([scores, column.astype(scores.dtype)], axis=-1)
        return mx.softmax(joined, axis=-1)[..., :-1]

    def _mixed(self, weights: mx.array, values: mx.array) -> mx.array:
        """Return [N, H, B, d]: values of context and block under `weights` [N, H, B, S + B]."""
        n_blocks, n_heads, n_rows, _ = weights.shape
        n_context, groups = self.values.shape[2], values.shape[1]
        weights = weights.reshape(n_blocks, groups, -1, weights.shape[-1])
        context = weights[..., :n_context].transpose(1, 0, 2, 3).reshape(groups, -1, n_context)
        mixed = (context @ self.values[0]).reshape(groups, n_blocks, -1, values.shape[-1])
        mixed = mixed.transpose(1, 0, 2, 3) + weights[..., n_context:] @ values
        return mixed.reshape(n_blocks, n_heads, n_rows, -1)


def _turned(keys: mx.array) -> mx.array:
    return keys.swapaxes(-1, -2)
