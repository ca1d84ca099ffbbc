"""A policy, and every fixed width, through one scenario; and how the policy did.

Times are judged without noise; the policy sees them with it, as a real one would.
"""

from dataclasses import dataclass

import numpy as np

from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.controller.tuning import Tuning
from dflash_mlx.decode.policy import BlockPolicy
from dflash_mlx.decode.round import Round
from dflash_mlx.simulate.requests import Requests
from dflash_mlx.simulate.scenario import Scenario
from dflash_mlx.simulate.trace import Floats, Ints, Trace, make_trace

SPAN = 512
"""Tokens of the stretches that must not be slower than plain decoding."""


class Machine:
    """The true seconds of a round in a scenario, by rows and place in the text."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        curve = scenario.costs.curve()
        self._base = [0.0] + [curve.at(rows, 0) for rows in range(1, scenario.max_rows + 1)]

    def seconds(self, n_rows: int, at: int) -> float:
        """Return the seconds of a round of `n_rows` rows at token `at` of the answer."""
        scenario = self._scenario
        seconds = self._base[n_rows] + scenario.costs.context_s(n_rows, scenario.context + at)
        return seconds * (scenario.throttle if at >= scenario.throttle_at else 1.0)


@dataclass(frozen=True)
class Outcome:
    """How a policy did. Ratios are speeds: 1 is as fast, more is faster.

    `worst_of_plain` is over any `SPAN` tokens, `of_plain` and `of_best` over the whole text;
    `best_rows` is the fixed width that hindsight would have taken, and `best_worst` how slow it
    was over its own worst `SPAN` tokens, which nothing held it to. `shares` gives the share of
    tokens that was decoded at each width.
    """

    name: str
    worst_of_plain: float
    of_plain: float
    of_best: float
    best_rows: int
    best_of_plain: float
    best_worst: float
    tokens_per_round: float
    shares: dict[int, float]


def run_auto(scenario: Scenario) -> Outcome:
    """Return how the controller decodes a scenario, knowing only what it was told of costs.

    Every recorded answer is a request of its own.
    """
    tuning = Tuning(believed_curve(scenario), scenario.max_rows)
    lengths = [len(one.right) for one in scenario.recorded]
    return simulate(scenario, make_trace(scenario), Requests(tuning, lengths))


def believed_curve(scenario: Scenario) -> CostCurve:
    """Return the costs that the controller is told: short contexts, and wrong as told to be."""
    true = scenario.costs.curve()
    told = tuple(
        seconds * (scenario.believed if rows > 1 else 1.0)
        for rows, seconds in zip(true.widths, true.seconds[0], strict=True)
    )
    return CostCurve(true.widths, (0,), (told,), scenario.costs.context_ms / 1e6)


def simulate(scenario: Scenario, trace: Trace, policy: BlockPolicy) -> Outcome:
    """Return how `policy` decodes `trace`."""
    machine = Machine(scenario)
    plain = np.array([machine.seconds(1, at) for at in range(trace.n_tokens)])
    ends, seconds, rows = _decode(scenario, trace, machine, policy)
    fixed = {width: _fixed(trace, machine, width) for width in range(1, scenario.max_rows + 1)}
    best = min(fixed, key=lambda width: float(fixed[width][1].sum()))
    best_s = float(fixed[best][1].sum())
    total = float(seconds.sum())
    tokens = np.diff(np.concatenate([[0], ends]))
    return Outcome(
        name=scenario.name,
        worst_of_plain=_worst(ends, seconds, plain),
        of_plain=float(plain.sum()) / total,
        of_best=best_s / total,
        best_rows=best,
        best_of_plain=float(plain.sum()) / best_s,
        best_worst=_worst(*fixed[best], plain),
        tokens_per_round=trace.n_tokens / len(ends),
        shares={
            int(width): float(tokens[rows == width].sum()) / trace.n_tokens
            for width in np.unique(rows)
        },
    )


def _decode(
    scenario: Scenario, trace: Trace, machine: Machine, policy: BlockPolicy
) -> tuple[Ints, Floats, Ints]:
    """Run the policy; return the tokens done, the true seconds and the rows of every round."""
    rng = np.random.default_rng(scenario.seed + 1)
    noise = np.exp(rng.normal(0, scenario.jitter, trace.n_tokens))
    noise[rng.random(trace.n_tokens) < 0.02] *= 3
    at, ends, seconds, widths = 0, [], [], []
    ahead = False  # the step behind a plain step is launched before anything else is asked
    right, confidence = trace.right.tolist(), trace.confidence.tolist()
    while at < trace.n_tokens:
        launched_early = ahead
        rows = 1 if ahead else min(policy.rows(scenario.context + at), trace.n_tokens - at)
        ahead = rows == 1 and policy.next_step_is_plain()
        accepted = min(right[at], rows - 1)
        took = machine.seconds(rows, at)
        if rows == 1 and not launched_early and not ahead:
            took *= scenario.alone
        end = at + accepted + 1
        policy.observe(
            Round(
                tokens=(0,) * (end - at),
                drafted=rows - 1,
                accepted=accepted,
                healthy=True,
                seconds=took * float(noise[at]),
                context=scenario.context + at,
                confidence=tuple(confidence[at:end]),
                launched_early=launched_early,
                pipelined_next=ahead,
            )
        )
        at = end
        ends.append(end)
        seconds.append(took)
        widths.append(rows)
    return np.array(ends), np.array(seconds), np.array(widths)


def _fixed(trace: Trace, machine: Machine, width: int) -> tuple[Ints, Floats]:
    """Return the tokens done and the seconds of every round of a fixed width."""
    at, ends, seconds = 0, [], []
    right = trace.right.tolist()
    while at < trace.n_tokens:
        rows = min(width, trace.n_tokens - at)
        seconds.append(machine.seconds(rows, at))
        at += min(right[at], rows - 1) + 1
        ends.append(at)
    return np.array(ends), np.array(seconds)


def _worst(ends: Ints, seconds: Floats, plain: Floats) -> float:
    """Return the slowest stretch of at least `SPAN` tokens, as a share of plain speed."""
    done = np.concatenate([[0], ends])
    spent = np.concatenate([[0.0], np.cumsum(seconds)])
    ideal = np.concatenate([[0.0], np.cumsum(plain)])
    last = np.searchsorted(done, done + SPAN)
    first = np.nonzero(last < len(done))[0]
    if not len(first):
        return float(ideal[-1] / spent[-1])
    last = last[first]
    return float(((ideal[done[last]] - ideal[done[first]]) / (spent[last] - spent[first])).min())
