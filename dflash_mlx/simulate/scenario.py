"""What a simulation is made of: a machine's costs, a text's phases, and what is not known.

Scenario and cost tables are data files beside this one (TOML); nothing here runs anything.
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
    """True costs of a machine with a pair, in milliseconds, overhead of a round included.

    `verify_ms` and `draft_ms` are by `widths` (1 first, whose draft costs 0). A row of context
    adds `context_ms` per 1000 rows to a plain step, and for B rows as much again for each
    further row times `reread` (1: every query row reads the cache anew).
    """

    name: str
    source: str
    widths: tuple[int, ...]
    verify_ms: tuple[float, ...]
    draft_ms: tuple[float, ...]
    overhead_ms: float
    context_ms: float = 0.0
    reread: float = 1.0

    def curve(self) -> CostCurve:
        """Return the curve in seconds at an empty context, as calibration would measure it."""
        seconds = tuple(
            (verify + drafting + (self.overhead_ms if width > 1 else 0)) / 1000
            for width, verify, drafting in zip(
                self.widths, self.verify_ms, self.draft_ms, strict=True
            )
        )
        return CostCurve(self.widths, (0,), (seconds,))

    def context_s(self, n_rows: int, context: int) -> float:
        """Return the seconds that `context` rows add to a round of `n_rows` rows."""
        return self.context_ms * context / 1e6 * (1 + self.reread * (n_rows - 1))


@dataclass(frozen=True)
class Phase:
    """A stretch of text of one kind.

    `accept[k]` is the chance that draft token k is right when all before it were, the last value
    holding for every further position. Easy and hard passages of about `patch` tokens alternate,
    `spread` (in logits) apart from the mean. `confidence` is the target's usual probability for
    its own token, and `telling` how much of a token's difficulty shows in it (0 to 1).
    """

    kind: str
    n_tokens: int
    accept: tuple[float, ...]
    confidence: float
    patch: int = 12
    spread: float = 0.5
    telling: float = 0.5


@dataclass(frozen=True)
class Scenario:
    """A text on a machine: invented phases, or recorded answers one behind the other.

    `believed` scales what the controller is told of drafting costs. `jitter` is the relative
    noise of measured times (one in fifty rounds is three times as long). From token `throttle_at`
    on everything takes `throttle` times as long. A plain step that waits for the host on both
    sides takes `alone` times as long as one that does not.
    """

    name: str
    costs: CostTable
    phases: tuple[Phase, ...]
    seed: int
    recorded: tuple[Recording, ...] = ()
    max_rows: int = 16
    context: int = 0
    believed: float = 1.0
    jitter: float = 0.05
    throttle_at: int = 0
    throttle: float = 1.0
    alone: float = 1.1


@cache
def cost_tables() -> Mapping[str, CostTable]:
    """Return the cost tables that ship with the package, by name."""
    return {name: _table(name, values) for name, values in read_tables("costs").items()}


@cache
def text_kinds() -> Mapping[str, Mapping[str, Any]]:
    """Return the kinds of text that phases are made of, by name."""
    return read_tables("kinds")


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Return the scenarios that ship with the package, by name."""
    tables = sorted(read_tables("scenarios").items())
    return tuple(make_scenario(name, values) for name, values in tables)


def find_scenarios(names: Sequence[str]) -> tuple[Scenario, ...]:
    """Return the scenarios of these names, all that ship where there are none.

    Raises:
        BadRequest: there is no such scenario.
    """
    known = {scenario.name: scenario for scenario in scenarios()}
    return tuple(_named(known, name, "scenario") for name in names) or scenarios()


def make_scenario(name: str, values: Mapping[str, Any]) -> Scenario:
    """Return the scenario that one table of `scenarios.toml` spells.

    Raises:
        BadRequest: it names a cost table, a kind of text or a recording that is not there.
    """
    given = dict(values)
    phases = tuple(make_phase(kind, n_tokens) for kind, n_tokens in given.pop("text", ()))
    names = given.pop("recorded", ())
    given["recorded"] = tuple(_named(recordings(), one, "recording") for one in names)
    costs = _named(cost_tables(), given.pop("costs"), "cost table")
    given.setdefault("seed", 0)
    return Scenario(name=name, costs=costs, phases=phases, **given)


def make_phase(kind: str, n_tokens: int) -> Phase:
    """Return `n_tokens` of a kind of text.

    Raises:
        BadRequest: there is no such kind.
    """
    values = dict(_named(text_kinds(), kind, "kind of text"))
    return Phase(kind=kind, n_tokens=n_tokens, accept=tuple(values.pop("accept")), **values)


def _named(known: Mapping[str, T], name: str, what: str) -> T:
    if name not in known:
        raise BadRequest(f"there is no {what} {name!r}; there are {', '.join(sorted(known))}")
    return known[name]


def _table(name: str, values: Mapping[str, Any]) -> CostTable:
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return CostTable(name=name, **({**values, **lists}))
