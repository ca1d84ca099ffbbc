"""Costs of a pair's rounds on this machine: read from the store or measured at load, then saved.

It must not know requests.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from dflash_mlx.controller.calibrate import calibrate
from dflash_mlx.controller.cost_store import CostKey, CostStore, LearnedCosts
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.controller.state import ControllerState
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.loading.compute import weight_bytes
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.system.machine import this_machine
from dflash_mlx.system.settings import settings_folder


def with_costs(
    loaded: LoadedPair,
    on_step: Callable[[str], None],
    store: CostStore | None = None,
) -> LoadedPair:
    """Return the pair with `tuning` set, from `store` or measured in under two seconds.

    Call it on the worker thread. A pair without a draft is returned unchanged.

    Args:
        loaded: the pair.
        on_step: receives one line when costs are measured, or when the store cannot be used.
        store: where costs are saved; None takes this user's.
    """
    draft = loaded.pair.draft
    if draft is None:
        return loaded
    key = cost_key(loaded)
    store = store or default_cost_store()
    learned, problem = store.load(key)
    if problem:
        on_step(problem)
    if learned is not None:
        known = ControllerState(learned.curve, draft.block_size, learned.counts, key.kernels)
        return replace(loaded, tuning=known)
    on_step("measuring the cost of rounds on this machine")
    tuning = ControllerState(_measure(loaded), draft.block_size, kernels=key.kernels)
    measured = replace(loaded, tuning=tuning)
    if problem := save_costs(measured, store):
        on_step(problem)
    return measured


def remeasure_costs(loaded: LoadedPair) -> None:
    """Measure the costs again if autotuning has chosen other kernels since they were measured.

    Call it on the worker thread. It takes under two seconds.
    """
    if loaded.tuning is not None and loaded.tuning.kernels != (kernels := _kernels(loaded)):
        loaded.tuning.replace_costs(_measure(loaded), kernels)


def save_costs(loaded: LoadedPair, store: CostStore | None = None) -> str | None:
    """Save the costs and acceptance of the pair; return the reason if that failed, else None."""
    tuning = loaded.tuning
    if tuning is None:
        return None
    learned = LearnedCosts(tuning.costs.corrected_curve(), tuning.counts)
    return (store or default_cost_store()).save(cost_key(loaded), learned)


def default_cost_store() -> CostStore:
    """Return the store in this user's settings folder."""
    return CostStore(settings_folder() / "costs")


def cost_key(loaded: LoadedPair) -> CostKey:
    """Return what the costs of a pair depend on.

    Weights are identified by their size in bytes: a digest of them would take as long as the
    measurement that the store saves.
    """
    sizes = f"{_bytes(loaded.pair.target)} + {_bytes(loaded.pair.draft)} bytes"
    return CostKey(
        chip=this_machine().chip,
        device=loaded.compute.device,
        model=loaded.model_name,
        draft=loaded.draft_name or "",
        quantization=sizes,
        blas=loaded.blas,
        mlx=version("mlx"),
        kernels=loaded.tuning.kernels if loaded.tuning else _kernels(loaded),
    )


def _kernels(loaded: LoadedPair) -> str:
    return loaded.kernels.digest if loaded.kernels else "stock"


def _measure(loaded: LoadedPair) -> CostCurve:
    draft = loaded.pair.draft
    assert draft is not None
    return calibrate(loaded.pair, draft.block_size)


def _bytes(model: object) -> int:
    return weight_bytes(model.model) if isinstance(model, DecoderTarget | BoundDraft) else 0
