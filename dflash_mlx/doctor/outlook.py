"""What `block auto` knows of a pair on this machine, and what it would do, in words."""

from collections.abc import Iterator
from typing import Any

from dflash_mlx.controller.acceptance import expected_tokens
from dflash_mlx.controller.adaptive import AdaptiveBlock
from dflash_mlx.controller.cost_store import CostStore
from dflash_mlx.controller.state import ControllerState
from dflash_mlx.doctor.checkup import Finding
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.measured_costs import cost_key, default_cost_store

_BARS = "▁▂▃▄▅▆▇█"


def check_auto(
    loaded: LoadedPair, n_rows: int, facts: dict[str, Any], store: CostStore | None = None
) -> Iterator[Finding]:
    """Look at the costs kept for a pair (an outline will do) and at what follows from them.

    `n_rows` is the context to reckon with. What is found is put into `facts` as plain values.
    """
    draft = loaded.pair.draft
    if draft is None:
        return
    learned, word = (store or default_cost_store()).load(cost_key(loaded))
    if learned is None:
        why = f"{word}; " if word else ""
        yield Finding("auto", "ok", f"{why}costs are measured when the pair is loaded")
        return
    tuning = ControllerState(learned.curve, draft.block_size, learned.counts)
    costs = tuning.costs.relative(n_rows)
    facts["costs"] = dict(enumerate(costs, 1))
    yield Finding("costs", "ok", f"{plot(costs)} plain steps a round, {n_rows} rows of context")
    rows, gain, reason = _choice(tuning, n_rows)
    facts["auto"] = {"rows": rows, "of_plain": gain, "reason": reason}
    yield Finding("auto", "ok", reason)


def plot(costs: list[float]) -> str:
    """Return costs by rows as a row of bars between its ends, such as "1: 1.0 ▁▂▅ 3: 2.1"."""
    low, high = min(costs), max(costs)
    scale = (len(_BARS) - 1) / ((high - low) or 1.0)
    bars = "".join(_BARS[round((cost - low) * scale)] for cost in costs)
    return f"1 row: {costs[0]:.1f} {bars} {len(costs)} rows: {costs[-1]:.1f}"


def _choice(tuning: ControllerState, n_rows: int) -> tuple[int, float, str]:
    """Return the rows that auto would begin with, the speed expected, and why."""
    policy: AdaptiveBlock = tuning.policy()
    rows, gain = policy.best_draft(n_rows)
    costs = tuning.costs.relative(n_rows)
    if not tuning.counts.rates:
        return rows, gain, "begins by trying: nothing is known yet of what is accepted here"
    tokens = expected_tokens(tuning.counts.rates)[rows - 1]
    seen = f"{rows} rows bring about {tokens:.1f} tokens and cost {costs[rows - 1]:.1f} plain steps"
    if gain > 1:
        return rows, gain, f"begins with {rows} rows: {seen}, {gain:.2f} times plain speed"
    return 1, gain, f"begins with plain decoding and tries again now and then: {seen}"
