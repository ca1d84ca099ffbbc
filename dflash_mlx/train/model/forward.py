"""The draft's training forward: many blocks of one sequence at once, from anchors to logits.

Must not know losses or optimisers. Source: arXiv 2602.06036, section 3.2.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from mlx.nn.utils import checkpoint

from dflash_mlx.models.draft.dflash import BoundDraft, DraftAttention, DraftLayer, DraftModel
from dflash_mlx.models.draft.rope import Rotation
from dflash_mlx.models.protocols import Target

_HEAD_COLUMNS = 256
"""Columns of the target's head that are read at once: a product of 256 rows with the head takes
150 MB for a vocabulary of 150,000."""


class Blocks(NamedTuple):
    """N blocks of size B in one sequence of n tokens.

    `anchors` [N] are ascending positions, `labels` [N, B - 1] the tokens after each anchor (0
    after the end of the sequence), `known` [N, B - 1] whether such a token exists.
    """

    anchors: np.ndarray
    labels: np.ndarray
    known: np.ndarray


def draw_blocks(
    tokens: np.ndarray, first: int, block_size: int, n_blocks: int, rng: np.random.Generator
) -> Blocks:
    """Return up to `n_blocks` blocks of `tokens` [n] at distinct anchors, uniform from `first`.

    An anchor is a position where decoding can start a round: the last prompt token or any answer
    token except the last.
    """
    positions = np.arange(first, len(tokens) - 1)
    if len(positions) > n_blocks:
        positions = rng.choice(positions, n_blocks, replace=False)
    return blocks_at(tokens, np.sort(positions), block_size)


def blocks_at(tokens: np.ndarray, anchors: np.ndarray, block_size: int) -> Blocks:
    """Return the blocks of `tokens` [n] with the given anchors [N]."""
    positions = anchors[:, None] + np.arange(1, block_size)
    known = positions < len(tokens)
    labels = np.where(known, tokens[np.minimum(positions, len(tokens) - 1)], 0)
    return Blocks(anchors, labels, known)


def denoise(
    model: DraftModel,
    embedded: mx.array,
    features: mx.array,
    anchors: np.ndarray,
    *,
    checkpointing: bool = False,
) -> mx.array:
    """Return normed hidden states [N, B - 1, D] of embedded block tokens [N, B, D].

    Each block attends to the context before its anchor and to itself, never to another block, so
    all blocks share one set of context keys and values. Each row attends to the same positions
    as in decoding.

    Args:
        model: the draft.
        embedded: anchor and mask tokens of N blocks of size B.
        features: hidden states [1, n, F] of the target from the first token of the sequence;
            rows from the last anchor on are not read.
        anchors: positions [N].
        checkpointing: compute the activations of each layer again for its gradient instead of
            storing them.
    """
    n_context = max(int(anchors.max()), 1)
    context = model.hidden_norm(model.fc(features[:, :n_context]))
    positions = _Positions(anchors, embedded.shape[1], n_context)
    rows = embedded
    for layer in model.layers:
        run = _layer_function(layer, model.rope, positions)
        rows = checkpoint(layer, run)(rows, context) if checkpointing else run(rows, context)
    normed: mx.array = model.norm(rows[:, 1:])
    return normed


def visible_context(
    anchors: np.ndarray, block_size: int, n_context: int, window: int | None
) -> np.ndarray:
    """Return [N, B, S]: whether row b of block n attends to context row s."""
    keys = np.arange(n_context)
    visible = np.broadcast_to(
        (keys < anchors[:, None])[:, None], (len(anchors), block_size, n_context)
    )
    if window is None:
        return visible
    queries = anchors[:, None] + np.arange(block_size)
    return visible & (queries[:, :, None] - keys < window)


def visible_block(block_size: int, causal: bool) -> np.ndarray:
    """Return [B, B]: whether a row of a block attends to another row of the same block."""
    everything = np.ones((block_size, block_size), bool)
    return np.tril(everything) if causal else everything


class _Positions(NamedTuple):
    """Anchors [N], the block size B and the number of context rows S."""

    anchors: np.ndarray
    block_size: int
    n_context: int


def _layer_function(
    layer: DraftLayer, rope: Rotation, positions: _Positions
) -> Callable[[mx.array, mx.array], mx.array]:
    """Return `layer` as a function of block rows [N, B, D] and context [1, S, D]."""

    def run(rows: mx.array, context: mx.array) -> mx.array:
        return layer.mix(rows, _BlockAttention(layer.self_attn, rope, context, positions))

    return run


class _BlockAttention:
    """One layer's attention of N blocks over the shared context and over themselves.

    Letters: H query heads, G key/value heads, d head size.
    """

    def __init__(
        self, attention: DraftAttention, rope: Rotation, context: mx.array, positions: _Positions
    ) -> None:
        anchors, block_size, n_context = positions
        self.attention = attention
        self.rope = rope
        self.starts = mx.array(anchors)
        self.keys, self.values = attention.keys_values(context, rope, 0)
        seen = visible_context(anchors, block_size, n_context, attention.window)
        block = visible_block(block_size, attention.causal)
        both = np.concatenate([seen, np.broadcast_to(block, (len(anchors), *block.shape))], axis=2)
        self.mask = mx.array(np.where(both, 0, -np.inf).astype(np.float32))

    def __call__(self, rows: mx.array) -> mx.array:
        """Return the attention output [N, B, D] for normed block rows [N, B, D]."""
        attention = self.attention
        queries = attention.queries(rows, self.rope, self.starts)
        keys, values = attention.keys_values(rows, self.rope, self.starts)
        n_blocks, n_heads, n_rows, dim = queries.shape
        groups = keys.shape[1]
        queries = queries.reshape(n_blocks, groups, -1, dim) * attention.scale
        # all blocks share the context: one matrix product per key/value head
        over = queries.transpose(1, 0, 2, 3).reshape(groups, -1, dim) @ _transposed(self.keys[0])
        over = over.reshape(groups, n_blocks, -1, over.shape[-1]).transpose(1, 0, 2, 3)
        scores = mx.concatenate([over, queries @ _transposed(keys)], axis=-1)
        scores = scores.reshape(n_blocks, n_heads, n_rows, -1).astype(mx.float32)
        weights = self._weights(scores + self.mask[:, None]).astype(rows.dtype)
        mixed = self._weighted_values(weights, values)
        return attention.o_proj(mixed.transpose(0, 2, 1, 3).reshape(n_blocks, n_rows, -1))

    def _weights(self, scores: mx.array) -> mx.array:
        """Return the softmax of `scores` [N, H, B, S + B], with the attention sink if any."""
        sinks = self.attention.sinks
        if sinks is None:
            return mx.softmax(scores, axis=-1)
        column = mx.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
        joined = mx.concatenate([scores, column.astype(scores.dtype)], axis=-1)
        return mx.softmax(joined, axis=-1)[..., :-1]

    def _weighted_values(self, weights: mx.array, values: mx.array) -> mx.array:
        """Return [N, H, B, d]: context and block values weighted by `weights` [N, H, B, S + B]."""
        n_blocks, n_heads, n_rows, _ = weights.shape
        n_context, groups = self.values.shape[2], values.shape[1]
        weights = weights.reshape(n_blocks, groups, -1, weights.shape[-1])
        context = weights[..., :n_context].transpose(1, 0, 2, 3).reshape(groups, -1, n_context)
        mixed = (context @ self.values[0]).reshape(groups, n_blocks, -1, values.shape[-1])
        mixed = mixed.transpose(1, 0, 2, 3) + weights[..., n_context:] @ values
        return mixed.reshape(n_blocks, n_heads, n_rows, -1)


def _transposed(keys: mx.array) -> mx.array:
    return keys.swapaxes(-1, -2)


class TrainingHead:
    """A head over the target's token `ids` in ascending order, or over all tokens if None.

    `project` maps normed hidden states [..., D] to logits [..., V].
    """

    def __init__(
        self, project: Callable[[mx.array], mx.array], ids: np.ndarray | None, vocab_size: int
    ) -> None:
        self.project = project
        self.ids = ids
        self._index_of = np.full(vocab_size, -1, np.int32)
        if ids is None:
            self._index_of[:] = np.arange(vocab_size)
        else:
            self._index_of[ids] = np.arange(len(ids))

    def indices(self, tokens: np.ndarray) -> np.ndarray:
        """Return the index of each token among the logits, -1 for tokens outside the head."""
        found: np.ndarray = self._index_of[tokens]
        return found

    def tokens(self, indices: np.ndarray) -> np.ndarray:
        """Return the target's token ids of `indices` among the logits."""
        return indices if self.ids is None else self.ids[indices]


def full_head(draft: BoundDraft) -> TrainingHead:
    """Return the head that `draft` decodes with."""
    model, vocab_size = draft.model, draft.target.shape.vocab_size
    ids = None
    if "d2t" in model:
        offsets = np.array(model.d2t)
        ids = offsets + np.arange(len(offsets))
    return TrainingHead(draft.logits, ids, vocab_size)


def reduced_head(draft: BoundDraft, ids: np.ndarray, dtype: mx.Dtype) -> TrainingHead:
    """Return the target's head over `ids` alone, with the draft's logit scale and soft cap.

    Most of a step's time over a large vocabulary goes into tokens that no answer contains. A
    draft with its own head keeps that head.
    """
    if "lm_head" in draft.model:
        return full_head(draft)
    rows = head_rows(draft.target, ids).astype(dtype)
    mx.eval(rows)
    vocab_size = draft.target.shape.vocab_size
    return TrainingHead(lambda hidden: draft.shaped(hidden @ rows.T), ids, vocab_size)


def head_rows(target: Target, ids: np.ndarray) -> mx.array:
    """Return the rows [V, D] of the target's head for `ids`, in any quantization."""
    size, wanted = target.shape.hidden_size, mx.array(ids)
    columns = []
    for start in range(0, size, _HEAD_COLUMNS):
        unit = mx.eye(min(_HEAD_COLUMNS, size - start), size, start)
        columns.append(target.head(unit[None])[0][:, wanted])
        mx.eval(columns[-1])
    return mx.concatenate(columns, axis=0).T


def occurring_ids(answers: Iterable[np.ndarray], vocab_size: int) -> np.ndarray:
    """Return the token ids that occur in `answers`, ascending."""
    seen = np.zeros(vocab_size, bool)
    for answer in answers:
        seen[answer] = True
    return np.flatnonzero(seen)
