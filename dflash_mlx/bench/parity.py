"""Compares the texts of two arms: equal, different at a near-tie, or different.

Kernels for different block sizes round sums in a different order, which can decide a near-tie of
the top two logits either way. Any other difference is a bug.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_mlx.engine.engine import Engine

ParityVerdict = Literal["equal", "near-tie", "different"]

NEAR_TIE = {"cpu": 1e-3, "metal": 0.25}
"""Largest gap of the top two logits in a near-tie. Float32 sums on a CPU differ in the sixth digit;
on Metal activations have 8 bits of mantissa, so logits near 20 have a spacing of 0.125."""


@dataclass(frozen=True)
class Parity:
    """Result of a comparison: `at` is the first different token, `margin` the top-two logit gap."""

    verdict: ParityVerdict
    at: int | None = None
    margin: float | None = None


def compare(
    engine: Engine, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Parity:
    """Return how `other` compares with plain decoding's answer to `prompt`."""
    different = [at for at, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b]
    if not different and len(plain) == len(other):
        return Parity("equal")
    at = different[0] if different else min(len(plain), len(other))
    if not different:
        return Parity("different", at)
    margin = engine.worker.run(lambda: _margin(engine, [*prompt, *plain[:at]]))
    near = margin <= NEAR_TIE["cpu" if engine.loaded.compute.device == "cpu" else "metal"]
    return Parity("near-tie" if near else "different", at, margin)


def _margin(engine: Engine, tokens: Sequence[int]) -> float:
    """Return the gap between the two largest logits after `tokens`."""
    import mlx.core as mx

    pair: Any = engine.loaded.pair
    caches = pair.target.make_caches()
    output = pair.target.forward(mx.array([list(tokens)]), caches, ())
    logits = pair.target.logits(output.hidden[:, -1:])[0, 0].astype(mx.float32)
    top_two = mx.topk(logits, 2)
    gap: Any = (top_two[0] - top_two[1]).item()
    return abs(float(gap))
