"""What a simulation consists of: a machine's costs, a text, and the errors the controller faces.

Scenarios and cost tables are TOML files in `data/`; this module must not run anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.errors import BadRequest
from dflash_mlx.simulate.recording import Recording, recordings
from dflash_mlx.simulate.tables import read_tables

T = TypeVar("T")


@dataclass(frozen=True)
class CostTable:
    """True costs of a machine with a pair, in milliseconds.

    `verify_ms` and `draft_ms` are by `block_sizes` (1 first, whose draft costs 0); `overhead_ms`
    is added to every drafted round. 1000 tokens of context add `context_ms` to a plain step, and
    `reread` times as much for each further token of a block (1: every query reads the cache
    again).
    """

    name: str
    source: str
    block_sizes: tuple[int, ...]
    verify_ms: tuple[float, ...]
    draft_ms: tuple[float, ...]
    overhead_ms: float
    context_ms: float = 0.0
    reread: float = 1.0

    def curve(self) -> CostCurve:
        """Return the curve in seconds at an empty context, as calibration measures it."""
        seconds = tuple(
            (verify + draft + (self.overhead_ms if size > 1 else 0)) / 1000
            for size, verify, draft in zip(
                self.block_sizes, self.verify_ms, self.draft_ms, strict=True
            )
        )
        return CostCurve(self.block_sizes, (0,), (seconds,))

    def context_s(self, block_size: int, context: int) -> float:
        """Return the seconds that `context` tokens add to a round of `block_size` tokens."""
        return self.context_ms * context / 1e6 * (1 + self.reread * (block_size - 1))


@dataclass(frozen=True)
class TextPhase:
    """A stretch of text of one kind.

    `accept[k]` is the conditional acceptance rate of draft token k; the last value holds for
    every further position. Easy and hard passages of about `passage_tokens` tokens alternate,
    `spread` (in logits) from the mean. `confidence` is the target's usual probability for its own
    token, and `confidence_signal` (0 to 1) how much of a token's difficulty it shows.
    """

    kind: str
    n_tokens: int
    accept: tuple[float, ...]
    confidence: float
    passage_tokens: int = 12
    spread: float = 0.5
    confidence_signal: float = 0.5


@dataclass(frozen=True)
class Scenario:
    """A text on a machine: synthetic phases, or recorded answers in a row.

    The controller starts from drafting costs that are wrong by the factor `cost_error`. `jitter`
    is the relative noise of measured times. From token `throttle_at` on, everything takes
    `throttle` times as long. An unpipelined plain step takes `unpipelined` times as long as a
    pipelined one.
    """

    name: str
    costs: CostTable
    phases: tuple[TextPhase, ...]
    seed: int
    recorded: tuple[Recording, ...] = ()
    max_block_size: int = 16
    context: int = 0
    cost_error: float = 1.0
    jitter: float = 0.05
    throttle_at: int = 0
    throttle: float = 1.0
    unpipelined: float = 1.1


@cache
def cost_tables() -> Mapping[str, CostTable]:
    """Return the cost tables of the package, by name."""
    return {name: _table(name, values) for name, values in read_tables("costs").items()}


@cache
def text_kinds() -> Mapping[str, Mapping[str, Any]]:
    """Return the kinds of text that phases consist of, by name."""
    return read_tables("kinds")


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Return the scenarios of the package, sorted by name."""
    tables = sorted(read_tables("scenarios").items())
    return tuple(make_scenario(name, values) for name, values in tables)


def find_scenarios(names: Sequence[str]) -> tuple[Scenario, ...]:
    """Return the scenarios with these names; all of the package for no names.

    Raises:
        BadRequest: a scenario does not exist.
    """
    known = {scenario.name: scenario for scenario in scenarios()}
    return tuple(_find(known, name, "scenario") for name in names) or scenarios()


def make_scenario(name: str, values: Mapping[str, Any]) -> Scenario:
    """Return the scenario that a table of `scenarios.toml` describes.

    Raises:
        BadRequest: it names a cost table, a kind of text or a recording that does not exist.
    """
    given = dict(values)
    phases = tuple(make_phase(kind, n_tokens) for kind, n_tokens in given.pop("text", ()))
    names = given.pop("recorded", ())
    given["recorded"] = tuple(_find(recordings(), each, "recording") for each in names)
    costs = _find(cost_tables(), given.pop("costs"), "cost table")
    given.setdefault("seed", 0)
    return Scenario(name=name, costs=costs, phases=phases, **given)


def make_phase(kind: str, n_tokens: int) -> TextPhase:
    """Return `n_tokens` of a kind of text.

    Raises:
        BadRequest: the kind does not exist.
    """
    values = dict(_find(text_kinds(), kind, "kind of text"))
    return TextPhase(kind=kind, n_tokens=n_tokens, accept=tuple(values.pop("accept")), **values)


def _find(known: Mapping[str, T], name: str, what: str) -> T:
    if name not in known:
        names = ", ".join(sorted(known))
        raise BadRequest(f"{what} {name!r} does not exist; choose one of {names}")
    return known[name]


def _table(name: str, values: Mapping[str, Any]) -> CostTable:
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return CostTable(name=name, **({**values, **lists}))
