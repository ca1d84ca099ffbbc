"""Is it the same text? Compared before anything is timed; without parity there is no figure.

Where two texts part, the target itself is asked how sure it was there: a near-tie can fall
either way when sums are rounded in another order, which they are where kernels differ by the
number of rows. Anything else is a bug.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_mlx.engine.engine import Engine

TuningResult = Literal["equal", "near-tie", "different"]

NEAR_TIE = {"cpu": 1e-3, "metal": 0.25}
"""Most that the top two logits may differ by in a near-tie. Float32 sums on a CPU differ in the
sixth digit; on Metal activations have 8 bits of mantissa, so logits near 20 are 0.125 apart."""


@dataclass(frozen=True)
class Parity:
    """How two texts compare. `at` is the token where they part, `margin` the top-two logit gap."""

    verdict: TuningResult
    at: int | None = None
    margin: float | None = None


def compare(
    engine: Engine, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Parity:
    """Return how `other` compares with plain decoding's answer to `prompt`."""
    parted = [at for at, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b]
    if not parted and len(plain) == len(other):
        return Parity("equal")
    at = parted[0] if parted else min(len(plain), len(other))
    if not parted:
        return Parity("different", at)
    margin = engine.worker.run(lambda: _margin(engine, [*prompt, *plain[:at]]))
    near = margin <= NEAR_TIE["cpu" if engine.loaded.compute.device == "cpu" else "metal"]
    return Parity("near-tie" if near else "different", at, margin)


def _margin(engine: Engine, tokens: Sequence[int]) -> float:
    """Return the gap between the two largest logits behind `tokens`."""
    import mlx.core as mx

    pair: Any = engine.loaded.pair
    caches = pair.target.make_caches()
    walked = pair.target.forward(mx.array([list(tokens)]), caches, ())
    logits = pair.target.logits(walked.hidden[:, -1:])[0, 0].astype(mx.float32)
    pair_of_logits = mx.topk(logits, 2)
    gap: Any = (pair_of_logits[0] - pair_of_logits[1]).item()
    return abs(float(gap))
