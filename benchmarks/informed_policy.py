"""What nobody has to learn: the simulator's generated texts with a policy that knows them.

It knows every passage's tokens a round and the machine's costs, drafts the best width of each
passage, and is held to the ledger alone. What it misses no controller is to blame for: a loss
that any may make before it is stopped, and the luck of the width that hindsight picks.

    python benchmarks/informed_policy.py --seeds 1 2 --shares 0 0.02 0.03
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
from dflash_mlx.simulate.report import OF_BEST, WORST_OF_PLAIN, summarise
from dflash_mlx.simulate.run import SPAN, Machine, Outcome, simulate
from dflash_mlx.simulate.scenario import Phase, Scenario
from dflash_mlx.simulate.trace import make_trace

_LONG = 20_000
"""Tokens of a text like a passage, from which its tokens a round are taken."""

_SAME = 64
"""Tokens over which the best width is looked for once."""


class InformedBlock(FixedBlock):
    """The best width of every passage, while the ledger allows it (`share` 0: always)."""

    def __init__(self, scenario: Scenario, share: float) -> None:
        super().__init__(scenario.max_rows)
        self._scenario = scenario
        self._context = scenario.context
        self._machine = Machine(scenario)
        self._slowdown_budget = SlowdownBudget(SPAN)
        self._share = share
        self._ends = np.cumsum([phase.n_tokens for phase in scenario.phases])
        self._tokens = cache(partial(_tokens_a_round, scenario))
        self._best = cache(self._best_rows)

    def rows(self, context: int) -> int:
        """Return the rows of the next round."""
        self._context = context
        at = context - self._scenario.context
        rows = self._best(int(np.searchsorted(self._ends, at, side="right")), at // _SAME)
        risk = self._cost(rows, at) - 1
        return 1 if self._share and not self._slowdown_budget.allows(risk, self._share) else rows

    def next_step_is_plain(self) -> bool:
        """Whether a plain step now will be followed by another: nothing has changed since."""
        return self.rows(self._context) == 1

    def observe(self, done: Round) -> None:
        """Book the round."""
        at = done.context - self._scenario.context
        price = self._cost(done.drafted + 1, at) if done.drafted else None
        self._slowdown_budget.book(len(done.tokens), price)
        self._context = done.context + len(done.tokens)

    def _best_rows(self, passage: int, place: int) -> int:
        tokens = self._tokens(self._scenario.phases[passage])
        costs = [self._cost(rows + 1, place * _SAME) for rows in range(len(tokens))]
        return int(np.argmax(tokens / costs)) + 1

    def _cost(self, n_rows: int, at: int) -> float:
        return self._machine.seconds(n_rows, at) / self._machine.seconds(1, at)


def _tokens_a_round(scenario: Scenario, phase: Phase) -> np.ndarray:
    """Return the mean tokens of a round of 1, 2, ... rows in such a passage."""
    long = replace(scenario, phases=(replace(phase, n_tokens=_LONG),))
    right = make_trace(long).right
    return np.array([np.minimum(right, rows).mean() + 1 for rows in range(scenario.max_rows)])


def informed(scenario: Scenario, share: float) -> Outcome:
    """Return how the informed policy decodes a scenario."""
    return simulate(scenario, make_trace(scenario), InformedBlock(scenario, share))


def main() -> None:
    """Print what is missed under each share of the ledger."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.02, 0.03])
    parser.add_argument("--count", type=int, default=200, help="generated scenarios a seed")
    options = parser.parse_args()
    scenarios = [one for seed in options.seeds for one in generate(options.count, seed)]
    with Pool() as pool:
        for share in options.shares:
            outcomes = pool.map(partial(informed, share=share), scenarios, chunksize=8)
            found = summarise(outcomes)
            print(f"ledger of {share:.1%}" if share else "no ledger")
            print(
                f"  below {WORST_OF_PLAIN} of plain: {found.slower_than_plain} (worst "
                f"{found.worst_of_plain:.3f})"
            )
            print(
                f"  below {OF_BEST} of the best fixed width: {found.behind_best} (worst "
                f"{found.worst_of_best:.3f}, mean {found.mean_of_best:.3f}) of {found.count}"
            )


if __name__ == "__main__":
    main()
