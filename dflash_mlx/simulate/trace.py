"""A text as the controller meets it: where drafts are right, and how sure the target is.

Letters: n tokens. Every token has one difficulty, so a width chosen elsewhere would have met the
same text: that is what lets fixed widths be judged with hindsight on the very same trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_mlx.simulate.recording import Recording
from dflash_mlx.simulate.scenario import Phase, Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Trace:
    """`right[t]`: draft tokens in a row that would be right behind an anchor at t.

    `confidence[t]` is the target's probability for its own token at t.
    """

    right: Ints
    confidence: Floats

    @property
    def n_tokens(self) -> int:
        """Tokens of the text."""
        return len(self.confidence)


def make_trace(scenario: Scenario) -> Trace:
    """Return the trace of a scenario; the same one for the same seed."""
    if scenario.recorded:
        return _joined(scenario.recorded, scenario.max_rows - 1)
    rng = np.random.default_rng(scenario.seed)
    reach = scenario.max_rows - 1
    parts = [_phase(phase, reach, rng) for phase in scenario.phases]
    chance = np.concatenate([part[0] for part in parts])
    confidence = np.concatenate([part[1] for part in parts])
    luck = np.concatenate([part[2] for part in parts])
    return Trace(_runs(luck, chance, reach), confidence)


def _joined(recorded: Sequence[Recording], reach: int) -> Trace:
    right = np.concatenate([np.array(one.right, np.int64) for one in recorded])
    return Trace(np.minimum(right, reach), np.concatenate([one.confidence for one in recorded]))


def _phase(phase: Phase, reach: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Return chances [n, reach], confidences [n] and luck [n] of one phase."""
    n = phase.n_tokens
    turns = rng.random(n) < 1 / phase.patch
    side = np.where(np.cumsum(turns) % 2 == rng.integers(2), 1.0, -1.0)
    ease = side * phase.spread
    accept = np.array([phase.accept[min(k, len(phase.accept) - 1)] for k in range(reach)])
    chance = _logistic(_logit(accept)[None, :] + ease[:, None])
    luck = rng.random(n)
    shown = ease + _logit(1 - luck) * 0.5
    noise = rng.normal(0, 1, n)
    confidence = _logistic(
        _logit(np.array(phase.confidence)) + phase.telling * shown + (1 - phase.telling) * noise
    )
    return chance, confidence, luck


def _runs(luck: Floats, chance: Floats, reach: int) -> Ints:
    """Return how many tokens in a row behind each anchor are right."""
    n = len(luck)
    runs = np.zeros(n, np.int64)
    alive = np.ones(n, bool)
    for k in range(reach):
        ahead = np.arange(n) + k + 1
        inside = ahead < n
        at = np.minimum(ahead, n - 1)
        alive &= inside & (luck[at] < chance[at, k])
        runs += alive
    return runs


def _logit(chance: Floats) -> Floats:
    bounded = np.clip(chance, 1e-4, 1 - 1e-4)
    return np.log(bounded / (1 - bounded))


def _logistic(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
