"""From logits to tokens: filters, temperature, and randomness tied to a position.

Letters: R rows, V vocabulary. Filters and their order are mlx-lm's (top-p, min-p, top-k on
log-probabilities, then temperature). The random key of a row is (seed, position), so a token's
noise depends on where it stands and not on how the rows were grouped into rounds.
"""

import mlx.core as mx
from mlx_lm import sample_utils

from dflash_mlx.config import SamplingConfig
from dflash_mlx.models.random_keys import draw


def log_probs(logits: mx.array) -> mx.array:
    """Return log-probabilities [R, V], rounded exactly as mlx-lm rounds them."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def filtered(scores: mx.array, sampling: SamplingConfig) -> mx.array:
    """Return scores [R, V] whose softmax is the distribution to sample; excluded are -inf.

    `scores` [R, V] are log-probabilities.
    """
    if sampling.top_p < 1.0:
        scores = sample_utils.apply_top_p(scores, sampling.top_p)
    if sampling.min_p > 0.0:
        scores = sample_utils.apply_min_p(scores, sampling.min_p)
    if 0 < sampling.top_k < scores.shape[-1]:
        scores = sample_utils.apply_top_k(scores, sampling.top_k)
    return scores * (1.0 / sampling.temperature)


def choose(logits: mx.array, sampling: SamplingConfig, seed: int, position: int) -> mx.array:
    """Return the target's draws [R] from `logits` [R, V], whose row 0 stands at `position`."""
    return draw(filtered(log_probs(logits), sampling), seed, position)
