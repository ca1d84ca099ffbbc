"""How fast this machine does each part of a run, measured on a little of the real work.

What is timed is handed in, and so is the clock: this file decides how often and for how long.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

Clock = Callable[[], float]

PROBE_S = 120.0
"""Most seconds that all probes together may take."""


@dataclass(frozen=True)
class Speeds:
    """Seconds of each part of a run.

    `write_s` is per sample written, `feature_s` per sample's pass through the target, `step_s`
    per training step with its features at hand, `prompt_s` per prompt decoded to measure a draft.
    """

    write_s: float
    feature_s: float
    step_s: float
    prompt_s: float


def timed(
    work: Callable[[], object], clock: Clock, budget_s: float, most: int = 5, warm_up: bool = True
) -> float:
    """Return the median seconds of `work`, done up to `most` times within `budget_s`.

    The first time compiles and allocates; it counts only where there is no second.
    """
    begun, took = clock(), list[float]()
    while len(took) < most + warm_up:
        start = clock()
        work()
        took.append(clock() - start)
        if clock() - begun + took[-1] > budget_s:
            break
    return median(took[1:] if warm_up and len(took) > 1 else took)
