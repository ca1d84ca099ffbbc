"""Synthetic and recorded traces: where draft tokens are accepted, and the target's confidence.

Letters: n tokens. Every token has one difficulty, so all block sizes are judged on the same text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_mlx.simulate.recording import Recording
from dflash_mlx.simulate.scenario import Scenario, TextPhase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LUCK_IN_CONFIDENCE = 0.5
"""Weight (in logits) with which a token's own luck shows in the confidence: a token that is hard
to guess has a less confident target, but confidence does not decide acceptance."""


@dataclass(frozen=True)
class Trace:
    """`accepted[t]`: draft tokens accepted in a row after an anchor at t, without a limit by the
    block size. `confidence[t]`: the target's probability for its own token at t.
    """

    accepted: Ints
    confidence: Floats

    @property
    def n_tokens(self) -> int:
        """Tokens of the text."""
        return len(self.confidence)


def make_trace(scenario: Scenario) -> Trace:
    """Return the trace of a scenario; the same trace for the same seed."""
    n_positions = scenario.max_block_size - 1
    if scenario.recorded:
        return _joined(scenario.recorded, n_positions)
    rng = np.random.default_rng(scenario.seed)
    parts = [_phase(phase, n_positions, rng) for phase in scenario.phases]
    rates = np.concatenate([part[0] for part in parts])
    confidence = np.concatenate([part[1] for part in parts])
    luck = np.concatenate([part[2] for part in parts])
    return Trace(_accepted(luck, rates), confidence)


def _joined(recorded: Sequence[Recording], n_positions: int) -> Trace:
    accepted = np.concatenate([np.array(each.accepted, np.int64) for each in recorded])
    confidence = np.concatenate([each.confidence for each in recorded])
    return Trace(np.minimum(accepted, n_positions), confidence)


def _phase(
    phase: TextPhase, n_positions: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Return acceptance rates [n, n_positions], confidences [n] and luck [n] of one phase."""
    n = phase.n_tokens
    starts = rng.random(n) < 1 / phase.passage_tokens
    side = np.where(np.cumsum(starts) % 2 == rng.integers(2), 1.0, -1.0)
    ease = side * phase.spread
    last = len(phase.accept) - 1
    accept = np.array([phase.accept[min(k, last)] for k in range(n_positions)])
    rates = _logistic(_logit(accept)[None, :] + ease[:, None])
    luck = rng.random(n)
    signal = ease + _logit(1 - luck) * _LUCK_IN_CONFIDENCE
    noise = rng.normal(0, 1, n)
    share = phase.confidence_signal
    mean = _logit(np.array(phase.confidence))
    return rates, _logistic(mean + share * signal + (1 - share) * noise), luck


def _accepted(luck: Floats, rates: Floats) -> Ints:
    """Return the draft tokens accepted in a row after each anchor."""
    n, n_positions = rates.shape
    counts = np.zeros(n, np.int64)
    alive = np.ones(n, bool)
    for k in range(n_positions):
        ahead = np.arange(n) + k + 1
        at = np.minimum(ahead, n - 1)
        alive &= (ahead < n) & (luck[at] < rates[at, k])
        counts += alive
    return counts


def _logit(probability: Floats) -> Floats:
    bounded = np.clip(probability, 1e-4, 1 - 1e-4)  # finite logits
    return np.log(bounded / (1 - bounded))


def _logistic(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
