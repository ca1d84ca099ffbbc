"""From logits to tokens: mlx-lm's filters, temperature, and samples drawn per position.

This module must not know blocks, drafts or accept rules.
"""

import mlx.core as mx
from mlx_lm import sample_utils

from dflash_mlx.config import SamplingConfig
from dflash_mlx.models.random_keys import draw


def log_probs(logits: mx.array) -> mx.array:
    """Return log-probabilities [R, V] of `logits` [R, V], rounded as mlx-lm rounds them."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def filtered(scores: mx.array, sampling: SamplingConfig) -> mx.array:
    """Return scores [R, V] whose softmax is the distribution to sample from.

    `scores` [R, V] are log-probabilities. Excluded tokens get -inf. Filters are applied in
    mlx-lm's order: top-p, min-p, top-k, then temperature.
    """
    if sampling.top_p < 1.0:
        scores = sample_utils.apply_top_p(scores, sampling.top_p)
    if sampling.min_p > 0.0:
        scores = sample_utils.apply_min_p(scores, sampling.min_p)
    if 0 < sampling.top_k < scores.shape[-1]:
        scores = sample_utils.apply_top_k(scores, sampling.top_k)
    return scores * (1.0 / sampling.temperature)


def choose(logits: mx.array, sampling: SamplingConfig, seed: int, position: int) -> mx.array:
    """Return one sampled token per row [R] of `logits` [R, V].

    Row i is drawn with the random key of (`seed`, `position` + i), so a token does not depend on
    how rows were grouped into rounds.
    """
    return draw(filtered(log_probs(logits), sampling), seed, position)
