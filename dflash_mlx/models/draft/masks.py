"""Who sees whom inside a draft layer: query rows of the block against context and block keys.

Rule (official dflash 0.1.0, `DFlashAttention`): a context key at position k is visible to a
query at position q when q - k < W, or always without a window; a block key is visible to every
query, or only to queries not before it when the layer is causal inside the block.
"""

import mlx.core as mx
import numpy as np


def block_mask(
    positions: np.ndarray, start: int, n_rows: int, window: int | None, causal: bool
) -> mx.array | None:
    """Return the mask [B, n + B] of a block over its context, or None if all is visible.

    `positions` [n] are the context rows' absolute positions, `start` is the anchor's, `n_rows`
    is B, `window` is W in rows (None: no window).
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
