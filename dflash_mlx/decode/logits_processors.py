"""Penalties, biases and a caller's own processors, applied at every row of a verified block.

A processor sees the tokens before a row and that row's logits, as in sequential decoding: row i
of a block follows the first i draft tokens. The penalties themselves are mlx-lm's.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_logits_processors

from dflash_mlx.config import LogitsProcessor, SamplingConfig


def make_processors(
    sampling: SamplingConfig, own: Sequence[LogitsProcessor]
) -> tuple[LogitsProcessor, ...]:
    """Return the processors of a request, in mlx-lm's order, the caller's own last."""
    penalty = sampling.repetition_penalty
    made = make_logits_processors(
        logit_bias=dict(sampling.logit_bias),
        repetition_penalty=penalty if penalty != 1.0 else None,
        repetition_context_size=sampling.repetition_context_size,
        presence_penalty=sampling.presence_penalty,
        presence_context_size=sampling.repetition_context_size,
        frequency_penalty=sampling.frequency_penalty,
        frequency_context_size=sampling.repetition_context_size,
    )
    return (*made, *own)


def processed(
    processors: Sequence[LogitsProcessor],
    history: Sequence[int],
    draft_tokens: mx.array,
    logits: mx.array,
) -> mx.array:
    """Return logits [B, V] after `processors`.

    `history` holds every token up to and with the anchor, `draft_tokens` [B - 1] what the block
    proposes behind it.
    """
    if not processors:
        return logits
    known = mx.array(np.asarray(history, np.int32))
    before = mx.concatenate([known, draft_tokens.astype(mx.int32)])
    rows = []
    for index in range(logits.shape[0]):
        row = logits[index : index + 1]
        for processor in processors:
            row = processor(before[: len(history) + index], row)
        rows.append(row)
    return mx.concatenate(rows)
