"""Findings about block size auto: the stored costs of a pair and the choice they lead to."""

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
    """Yield findings about the stored costs of a pair and the first block size.

    `n_rows` is the context length in tokens. Plain values are added to `facts`.
    """
    draft = loaded.pair.draft
    if draft is None:
        return
    learned, problem = (store or default_cost_store()).load(cost_key(loaded))
    if learned is None:
        prefix = f"{problem}; " if problem else ""
        yield Finding("auto", "ok", f"{prefix}costs are measured when the pair is loaded")
        return
    tuning = ControllerState(learned.curve, draft.block_size, learned.counts)
    costs = tuning.costs.relative(n_rows)
    facts["costs"] = dict(enumerate(costs, 1))
    yield Finding(
        "costs",
        "ok",
        f"{plot(costs)} plain decoding steps per round, at {n_rows} tokens of context",
    )
    rows, gain, reason = _choice(tuning, n_rows)
    facts["auto"] = {"block_size": rows, "speedup": gain, "reason": reason}
    yield Finding("auto", "ok", reason)


def plot(costs: list[float]) -> str:
    """Return costs by block size as bars between the first and last value."""
    low, high = min(costs), max(costs)
    scale = (len(_BARS) - 1) / ((high - low) or 1.0)
    bars = "".join(_BARS[round((cost - low) * scale)] for cost in costs)
    return f"block size 1: {costs[0]:.1f} {bars} {len(costs)}: {costs[-1]:.1f}"


def _choice(tuning: ControllerState, n_rows: int) -> tuple[int, float, str]:
    """Return the first block size of auto, the expected speedup, and the reason."""
    policy: AdaptiveBlock = tuning.policy()
    rows, gain = policy.best_draft(n_rows)
    costs = tuning.costs.relative(n_rows)
    if not tuning.counts.rates:
        return rows, gain, "starts by exploring: no acceptance has been measured yet"
    tokens = expected_tokens(tuning.counts.rates)[rows - 1]
    estimate = (
        f"about {tokens:.1f} tokens per round for the cost of {costs[rows - 1]:.1f} plain steps"
    )
    if gain > 1:
        return rows, gain, f"starts with block size {rows}: {estimate}, speedup {gain:.2f}"
    return 1, gain, f"starts with plain decoding and probes at intervals: {estimate}"
