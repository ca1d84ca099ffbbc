"""How much can any controller reach? Runs a policy that knows the text on generated scenarios.

The policy knows the tokens per round of every phase and the machine's costs, uses the best block
size of each phase, and is limited by the slowdown budget alone. What it misses is the cost of the
budget, or luck of the block size chosen in hindsight; no controller can do better.

    python benchmarks/informed_policy.py --seeds 1 2 --budgets 0 0.02 0.03
"""

import argparse
from dataclasses import replace
from functools import cache, partial
from multiprocessing import Pool

import numpy as np

from dflash_mlx.controller.slowdown_budget import SlowdownBudget
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.decode.round import Round
from dflash_mlx.simulate.generate import generate
from dflash_mlx.simulate.report import summarise, verdict
from dflash_mlx.simulate.run import SPAN, Outcome, SimulatedMachine, simulate
from dflash_mlx.simulate.scenario import Scenario, TextPhase
from dflash_mlx.simulate.trace import make_trace

_LONG = 20_000
"""Tokens of the text that the tokens per round of a phase are measured on: 1% of error."""

_GRAIN = 64
"""Tokens after which the best block size is computed again, because the context has grown."""


class InformedBlock(FixedBlock):
    """The best block size of every phase, while the budget allows it (`share` 0: always)."""

    def __init__(self, scenario: Scenario, share: float) -> None:
        super().__init__(scenario.max_block_size)
        self._scenario = scenario
        self._context = scenario.context
        self._machine = SimulatedMachine(scenario)
        self._budget = SlowdownBudget(SPAN)
        self._share = share
        self._ends = np.cumsum([phase.n_tokens for phase in scenario.phases])
        self._tokens = cache(partial(_tokens_per_round, scenario))
        self._best = cache(self._best_block_size)

    def next_block_size(self, context_length: int) -> int:
        """Return the block size of the next round."""
        self._context = context_length
        at = context_length - self._scenario.context
        phase = int(np.searchsorted(self._ends, at, side="right"))
        block_size = self._best(phase, at // _GRAIN)
        risk = self._cost(block_size, at) - 1
        return 1 if self._share and not self._budget.allows(risk, self._share) else block_size

    def next_step_is_plain(self) -> bool:
        """Return whether another plain step follows: nothing changed since then."""
        return self.next_block_size(self._context) == 1

    def observe(self, done: Round) -> None:
        """Record the round in the budget."""
        at = done.context_length - self._scenario.context
        cost = self._cost(done.drafted + 1, at) if done.drafted else None
        self._budget.record(len(done.tokens), cost)
        self._context = done.context_length + len(done.tokens)

    def _best_block_size(self, phase: int, grain: int) -> int:
        tokens = self._tokens(self._scenario.phases[phase])
        costs = [self._cost(size, grain * _GRAIN) for size in range(1, len(tokens) + 1)]
        return int(np.argmax(tokens / costs)) + 1

    def _cost(self, block_size: int, at: int) -> float:
        return self._machine.seconds(block_size, at) / self._machine.seconds(1, at)


def _tokens_per_round(scenario: Scenario, phase: TextPhase) -> np.ndarray:
    """Return the mean tokens of a round with block sizes 1, 2, ... in such a phase."""
    long = replace(scenario, phases=(replace(phase, n_tokens=_LONG),))
    accepted = make_trace(long).accepted
    positions = range(scenario.max_block_size)
    return np.array([np.minimum(accepted, drafted).mean() + 1 for drafted in positions])


def informed(scenario: Scenario, share: float) -> Outcome:
    """Return how the informed policy decodes a scenario."""
    return simulate(scenario, make_trace(scenario), InformedBlock(scenario, share))


def main() -> None:
    """Print how many scenarios miss each goal, for every budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.0, 0.02, 0.03])
    parser.add_argument("--count", type=int, default=200, help="generated scenarios per seed")
    options = parser.parse_args()
    scenarios = [each for seed in options.seeds for each in generate(options.count, seed)]
    with Pool() as pool:
        for share in options.budgets:
            outcomes = pool.map(partial(informed, share=share), scenarios, chunksize=8)
            print(f"budget of {share:.1%}:" if share else "no budget:")
            print(f"  {verdict(summarise(outcomes))}")


if __name__ == "__main__":
    main()
