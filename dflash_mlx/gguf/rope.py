"""Llama 3's rope scaling, recovered from the factors that a GGUF file stores instead.

A `config.json` holds four numbers; GGUF holds one factor per rotary frequency computed from them.
With w the wavelength of a frequency, L the original context length, l and h the low and high
frequency factors, and F the factor:

    1                              where w < L / h
    F                              where w > L / l
    1 / ((1 - s) / F + s)          between, with s = (L / w - l) / (h - l)

Scaling L, l and h together changes nothing, so l = 1 is chosen and the others are solved for.
Source: `rope_type: llama3` in transformers' `modeling_rope_utils`.
"""

import math
from typing import Any


def llama3_scaling(factors: list[float], theta: float) -> dict[str, Any] | None:
    """Return the `rope_scaling` that gives `factors`, None where no llama3 scaling does.

    `factors` [d / 2] belong to the wavelengths 2 pi theta^(2 i / d), d the size of a head.
    """
    waves = [2 * math.pi * theta ** (i / len(factors)) for i in range(len(factors))]
    factor = max(factors)
    between = [
        (1 / wave, (1 / value - 1 / factor) / (1 - 1 / factor))
        for wave, value in zip(waves, factors, strict=True)
        if 1 + 1e-4 < value < factor * (1 - 1e-4)
    ]
    if len(between) < 2:
        return None
    (x0, s0), (x1, s1) = between[0], between[-1]
    slope = (s1 - s0) / (x1 - x0)
    offset = slope * x0 - s0
    if slope <= 0 or offset <= 0:
        return None
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        # both are short decimals in every published configuration; float32 rounds them
        "high_freq_factor": round(1 + 1 / offset, 2),
        "original_max_position_embeddings": round(slope / offset),
    }
    recomputed = _factors(scaling, waves)
    # float32 factors of published files agree within 1e-6
    close = (math.isclose(a, b, rel_tol=1e-4) for a, b in zip(recomputed, factors, strict=True))
    return scaling if all(close) else None


def _factors(scaling: dict[str, Any], waves: list[float]) -> list[float]:
    length = scaling["original_max_position_embeddings"]
    high, factor = scaling["high_freq_factor"], scaling["factor"]
    smooth = [min(1.0, max(0.0, (length / wave - 1) / (high - 1))) for wave in waves]
    return [1 / ((1 - s) / factor + s) for s in smooth]
