"""Logits processors for verified blocks: penalties, logit bias and the caller's own.

The penalties are mlx-lm's. This module must not know how tokens are chosen or accepted.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_logits_processors

from dflash_mlx.config import LogitsProcessor, SamplingConfig


def make_processors(
    sampling: SamplingConfig, own: Sequence[LogitsProcessor]
) -> tuple[LogitsProcessor, ...]:
    """Return the processors of a request in mlx-lm's order, followed by the caller's `own`."""
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
    """Return `logits` [B, V] after `processors`, row by row as in sequential decoding.

    `history` holds all tokens up to and including the anchor, `draft_tokens` [B - 1] the tokens
    proposed after it. The processors of row i see `history` and the first i draft tokens.
    """
    if not processors:
        return logits
    known = mx.array(np.asarray(history, np.int32))
    tokens = mx.concatenate([known, draft_tokens.astype(mx.int32)])
    rows = []
    for index in range(logits.shape[0]):
        row = logits[index : index + 1]
        for processor in processors:
            row = processor(tokens[: len(history) + index], row)
        rows.append(row)
    return mx.concatenate(rows)
