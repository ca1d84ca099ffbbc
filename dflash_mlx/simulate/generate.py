"""More scenarios from a seed: machines, texts and beliefs that nobody chose.

Machines are the tables' with every cost bent; texts are the kinds' with every number moved; what
the controller is told is wrong by a random factor, and in some texts the target's confidence
says nothing about drafts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dflash_mlx.simulate.scenario import (
    CostTable,
    Phase,
    Scenario,
    cost_tables,
    make_phase,
    text_kinds,
)

T = TypeVar("T")

_SHORTEST = 512
"""Tokens of a text, at least: one of the stretches that are judged."""


def generate(count: int, seed: int) -> list[Scenario]:
    """Return `count` scenarios, the same ones for the same seed."""
    return [_scenario(number, np.random.default_rng([seed, number])) for number in range(count)]


def _scenario(number: int, rng: np.random.Generator) -> Scenario:
    costs = _bent(cost_tables()[_pick(sorted(cost_tables()), rng)], rng)
    telling = float(_pick([0.0, 0.3, 0.6, 0.9], rng))
    phases = _phases(telling, rng)
    n_tokens = sum(phase.n_tokens for phase in phases)
    throttled = rng.random() < 0.2
    return Scenario(
        name=f"seeded-{number:03d}-{costs.name}",
        costs=costs,
        phases=phases,
        seed=number,
        max_rows=int(_pick([8, 16], rng)),
        context=int(_pick([0, 0, 2048, 8192, 32768], rng)),
        believed=float(np.exp(rng.normal(0, 0.2))),
        jitter=float(rng.uniform(0.01, 0.1)),
        throttle_at=int(rng.integers(n_tokens)) if throttled else 0,
        throttle=float(rng.uniform(0.6, 1.8)) if throttled else 1.0,
        alone=float(rng.uniform(1.0, 1.2)),
    )


def _bent(table: CostTable, rng: np.random.Generator) -> CostTable:
    """Return a machine like `table`: what a row more costs, the draft and the context moved."""
    steeper, dearer, deeper = np.exp(rng.normal(0, [0.25, 0.5, 0.5]))
    plain = table.verify_ms[0]
    verify = tuple(plain + (cost - plain) * float(steeper) for cost in table.verify_ms)
    return replace(
        table,
        verify_ms=verify,
        draft_ms=tuple(cost * float(dearer) for cost in table.draft_ms),
        context_ms=table.context_ms * float(deeper),
    )


def _phases(telling: float, rng: np.random.Generator) -> tuple[Phase, ...]:
    """Return one to six passages, or as many as make a text of some length."""
    phases = [_phase(telling, rng) for _ in range(int(rng.integers(1, 7)))]
    while sum(phase.n_tokens for phase in phases) < _SHORTEST:
        phases.append(_phase(telling, rng))
    return tuple(phases)


def _phase(telling: float, rng: np.random.Generator) -> Phase:
    """Return a passage like one of the kinds, better or worse drafted, longer or shorter."""
    name = _pick(sorted(text_kinds()), rng)
    usual = make_phase(name, int(rng.integers(200, 1500)))
    accept = np.array(usual.accept)
    odds = accept / (1 - accept) * np.exp(rng.normal(0, 0.4))
    return replace(
        usual,
        accept=tuple(float(chance) for chance in odds / (1 + odds)),
        confidence=float(np.clip(usual.confidence + rng.normal(0, 0.04), 0.3, 0.99)),
        patch=int(rng.integers(4, 40)),
        spread=float(rng.uniform(0, 1.2)),
        telling=telling,
    )


def _pick(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]
