"""Runs a policy and every fixed block size through one scenario, and compares them.

Times are judged without noise; the policy sees them with noise, as a real one does.
"""

from dataclasses import dataclass

import numpy as np

from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.controller.state import ControllerState
from dflash_mlx.decode.policy import BlockPolicy, launches_next_step_early
from dflash_mlx.decode.round import Round
from dflash_mlx.simulate.requests import Requests
from dflash_mlx.simulate.scenario import Scenario
from dflash_mlx.simulate.trace import Floats, Ints, Trace, make_trace

SPAN = 512
"""Tokens of the sliding window in which decoding must not be slower than plain decoding."""

_OUTLIER_SHARE, _OUTLIER_FACTOR = 0.02, 3
"""Measured times: one in fifty is three times too long, as after a page fault."""


class SimulatedMachine:
    """The true seconds of a round in a scenario, by block size and position in the text."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        curve = scenario.costs.curve()
        sizes = range(1, scenario.max_block_size + 1)
        self._base = [0.0] + [curve.at(size, 0) for size in sizes]

    def seconds(self, block_size: int, at: int) -> float:
        """Return the seconds of a round of `block_size` tokens at token `at` of the answer."""
        scenario = self._scenario
        context_s = scenario.costs.context_s(block_size, scenario.context + at)
        throttle = scenario.throttle if at >= scenario.throttle_at else 1.0
        return (self._base[block_size] + context_s) * throttle


@dataclass(frozen=True)
class Outcome:
    """The result of a policy. `*speedup` are ratios to plain decoding, over the whole text.

    `worst_speedup` is the lowest over any `SPAN` tokens. `relative_to_best` is the ratio to the
    best fixed block size in hindsight (`best_block_size`), whose own figures are `best_speedup`
    and `best_worst_speedup`. `shares` is the share of tokens decoded with each block size.
    """

    name: str
    worst_speedup: float
    speedup: float
    relative_to_best: float
    best_block_size: int
    best_speedup: float
    best_worst_speedup: float
    tokens_per_round: float
    shares: dict[int, float]


@dataclass(frozen=True)
class Reference:
    """Plain decoding and the best fixed block size on one trace.

    `plain` [n] is the seconds of each plain step; `ends` and `seconds` are the committed tokens
    after, and the seconds of, each round with the best fixed block size.
    """

    plain: Floats
    best_block_size: int
    ends: Ints
    seconds: Floats


def run_auto(
    scenario: Scenario, trace: Trace | None = None, reference: Reference | None = None
) -> Outcome:
    """Return how the controller decodes a scenario, starting from the costs it is given.

    Every recorded answer is a request of its own. `trace` and `reference` are computed unless
    the caller has them.
    """
    state = ControllerState(initial_curve(scenario), scenario.max_block_size)
    lengths = [len(recording.accepted) for recording in scenario.recorded]
    trace = trace or make_trace(scenario)
    return simulate(scenario, trace, Requests(state, lengths), reference)


def initial_curve(scenario: Scenario) -> CostCurve:
    """Return the costs that the controller starts from: short contexts, wrong by `cost_error`."""
    true = scenario.costs.curve()
    seconds = tuple(
        seconds * (scenario.cost_error if size > 1 else 1.0)
        for size, seconds in zip(true.block_sizes, true.seconds[0], strict=True)
    )
    return CostCurve(true.block_sizes, (0,), (seconds,), scenario.costs.context_ms / 1e6)


def simulate(
    scenario: Scenario, trace: Trace, policy: BlockPolicy, reference: Reference | None = None
) -> Outcome:
    """Return how `policy` decodes `trace`."""
    reference = reference or make_reference(scenario, trace)
    plain, best_s = reference.plain, float(reference.seconds.sum())
    ends, seconds, sizes = _decode(scenario, trace, policy)
    total = float(seconds.sum())
    tokens = np.diff(np.concatenate([[0], ends]))
    return Outcome(
        name=scenario.name,
        worst_speedup=_worst_speedup(ends, seconds, plain),
        speedup=float(plain.sum()) / total,
        relative_to_best=best_s / total,
        best_block_size=reference.best_block_size,
        best_speedup=float(plain.sum()) / best_s,
        best_worst_speedup=_worst_speedup(reference.ends, reference.seconds, plain),
        tokens_per_round=trace.n_tokens / len(ends),
        shares={
            int(size): float(tokens[sizes == size].sum()) / trace.n_tokens
            for size in np.unique(sizes)
        },
    )


def make_reference(scenario: Scenario, trace: Trace) -> Reference:
    """Return plain decoding and the best fixed block size on `trace`."""
    machine = SimulatedMachine(scenario)
    plain = np.array([machine.seconds(1, at) for at in range(trace.n_tokens)])
    sizes = range(1, scenario.max_block_size + 1)
    fixed = {size: _decode_fixed(trace, machine, size) for size in sizes}
    best = min(fixed, key=lambda size: float(fixed[size][1].sum()))
    return Reference(plain, best, *fixed[best])


def _decode(scenario: Scenario, trace: Trace, policy: BlockPolicy) -> tuple[Ints, Floats, Ints]:
    """Run the policy; return committed tokens, true seconds and block size after every round."""
    machine = SimulatedMachine(scenario)
    rng = np.random.default_rng(scenario.seed + 1)
    noise = np.exp(rng.normal(0, scenario.jitter, trace.n_tokens))
    noise[rng.random(trace.n_tokens) < _OUTLIER_SHARE] *= _OUTLIER_FACTOR
    at, ends, seconds, sizes = 0, [], [], []
    pipelined = False  # whether the next plain step is already launched
    runs, confidence = trace.accepted.tolist(), trace.confidence.tolist()
    while at < trace.n_tokens:
        launched_early = pipelined
        wanted = 1 if pipelined else policy.next_block_size(scenario.context + at)
        remaining = trace.n_tokens - at
        size = min(wanted, remaining)
        pipelined = launches_next_step_early(policy, size, remaining)
        accepted = min(runs[at], size - 1)
        true_s = machine.seconds(size, at)
        if size == 1 and not launched_early and not pipelined:
            true_s *= scenario.unpipelined
        end = at + accepted + 1
        policy.observe(
            Round(
                tokens=(0,) * (end - at),
                drafted=size - 1,
                accepted=accepted,
                draft_is_finite=True,
                seconds=true_s * float(noise[at]),
                context_length=scenario.context + at,
                confidence=tuple(confidence[at:end]),
                launched_early=launched_early,
                pipelined_next=pipelined,
            )
        )
        at = end
        ends.append(end)
        seconds.append(true_s)
        sizes.append(size)
    return np.array(ends), np.array(seconds), np.array(sizes)


def _decode_fixed(trace: Trace, machine: SimulatedMachine, block_size: int) -> tuple[Ints, Floats]:
    """Return committed tokens and seconds after every round of a fixed block size."""
    at, ends, seconds = 0, [], []
    accepted = trace.accepted.tolist()
    while at < trace.n_tokens:
        size = min(block_size, trace.n_tokens - at)
        seconds.append(machine.seconds(size, at))
        at += min(accepted[at], size - 1) + 1
        ends.append(at)
    return np.array(ends), np.array(seconds)


def _worst_speedup(ends: Ints, seconds: Floats, plain: Floats) -> float:
    """Return the lowest speedup over any window of at least `SPAN` tokens."""
    done = np.concatenate([[0], ends])
    spent = np.concatenate([[0.0], np.cumsum(seconds)])
    ideal = np.concatenate([[0.0], np.cumsum(plain)])
    last = np.searchsorted(done, done + SPAN)
    first = np.nonzero(last < len(done))[0]
    if not len(first):
        return float(ideal[-1] / spent[-1])
    last = last[first]
    return float(((ideal[done[last]] - ideal[done[first]]) / (spent[last] - spent[first])).min())
