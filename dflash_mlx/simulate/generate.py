"""Generates scenarios from a seed: machines, texts and cost errors that were not hand-picked.

It must not know the controller, so that scenarios cannot be tuned to it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dflash_mlx.simulate.scenario import (
    CostTable,
    Scenario,
    TextPhase,
    cost_tables,
    make_phase,
    text_kinds,
)

T = TypeVar("T")

_MIN_TOKENS = 512
"""Tokens of a text, at least: one window of the goal."""


def generate(count: int, seed: int) -> list[Scenario]:
    """Return `count` scenarios; the same ones for the same seed."""
    return [_scenario(number, np.random.default_rng([seed, number])) for number in range(count)]


def _scenario(number: int, rng: np.random.Generator) -> Scenario:
    costs = _varied(cost_tables()[_pick(sorted(cost_tables()), rng)], rng)
    signal = float(_pick([0.0, 0.3, 0.6, 0.9], rng))
    phases = _phases(signal, rng)
    n_tokens = sum(phase.n_tokens for phase in phases)
    throttled = rng.random() < 0.2
    return Scenario(
        name=f"seeded-{number:03d}-{costs.name}",
        costs=costs,
        phases=phases,
        seed=number,
        max_block_size=int(_pick([8, 16], rng)),
        context=int(_pick([0, 0, 2048, 8192, 32768], rng)),
        cost_error=float(np.exp(rng.normal(0, 0.2))),
        jitter=float(rng.uniform(0.01, 0.1)),
        throttle_at=int(rng.integers(n_tokens)) if throttled else 0,
        throttle=float(rng.uniform(0.6, 1.8)) if throttled else 1.0,
        unpipelined=float(rng.uniform(1.0, 1.2)),
    )


def _varied(table: CostTable, rng: np.random.Generator) -> CostTable:
    """Return a machine like `table` with other costs of a block token, the draft and context."""
    verify_factor, draft_factor, context_factor = np.exp(rng.normal(0, [0.25, 0.5, 0.5]))
    plain = table.verify_ms[0]
    verify = tuple(plain + (cost - plain) * float(verify_factor) for cost in table.verify_ms)
    return replace(
        table,
        verify_ms=verify,
        draft_ms=tuple(cost * float(draft_factor) for cost in table.draft_ms),
        context_ms=table.context_ms * float(context_factor),
    )


def _phases(signal: float, rng: np.random.Generator) -> tuple[TextPhase, ...]:
    """Return one to six phases, or as many as `_MIN_TOKENS` need."""
    phases = [_phase(signal, rng) for _ in range(int(rng.integers(1, 7)))]
    while sum(phase.n_tokens for phase in phases) < _MIN_TOKENS:
        phases.append(_phase(signal, rng))
    return tuple(phases)


def _phase(signal: float, rng: np.random.Generator) -> TextPhase:
    """Return a phase of a random kind with other acceptance, confidence and passage length."""
    name = _pick(sorted(text_kinds()), rng)
    usual = make_phase(name, int(rng.integers(200, 1500)))
    accept = np.array(usual.accept)
    odds = accept / (1 - accept) * np.exp(rng.normal(0, 0.4))
    return replace(
        usual,
        accept=tuple(float(rate) for rate in odds / (1 + odds)),
        confidence=float(np.clip(usual.confidence + rng.normal(0, 0.04), 0.3, 0.99)),
        passage_tokens=int(rng.integers(4, 40)),
        spread=float(rng.uniform(0, 1.2)),
        confidence_signal=signal,
    )


def _pick(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]
