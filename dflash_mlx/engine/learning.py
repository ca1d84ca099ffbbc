"""What a pair costs on this machine: looked up or measured at load, kept at the end."""

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from dflash_mlx.controller.calibrate import calibrate
from dflash_mlx.controller.cost_store import CostKey, CostStore, Learned
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.controller.tuning import Tuning
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.loading.compute import weight_bytes
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.system.machine import this_machine
from dflash_mlx.system.settings import settings_folder


def tuned(
    loaded: LoadedPair,
    on_step: Callable[[str], None],
    store: CostStore | None = None,
) -> LoadedPair:
    """Return the pair with its costs known: from `store`, else measured in under two seconds.

    Belongs on the thread that owns the pair. A pair without a draft is returned as it is.
    """
    draft = loaded.pair.draft
    if draft is None:
        return loaded
    place = place_of(loaded)
    store = store or default_store()
    learned, word = store.load(place)
    if word:
        on_step(word)
    if learned is not None:
        known = Tuning(learned.curve, draft.block_size, learned.start, place.kernels)
        return replace(loaded, tuning=known)
    on_step("measuring what rounds cost here")
    found = Tuning(_measure(loaded), draft.block_size, kernels=place.kernels)
    measured = replace(loaded, tuning=found)
    if word := keep(measured, store):
        on_step(word)
    return measured


def measured_again(loaded: LoadedPair) -> None:
    """Measure what rounds cost where other kernels were chosen since costs were known.

    Belongs on the thread that owns the pair. Takes under two seconds.
    """
    if loaded.tuning is not None and loaded.tuning.kernels != (now := _kernels(loaded)):
        loaded.tuning.measured(_measure(loaded), now)


def keep(loaded: LoadedPair, store: CostStore | None = None) -> str | None:
    """Keep what the pair has learned; return a word on why that failed, if it did."""
    tuning = loaded.tuning
    if tuning is None:
        return None
    learned = Learned(tuning.costs.learned(), tuning.start)
    return (store or default_store()).save(place_of(loaded), learned)


def default_store() -> CostStore:
    """Return the store in this user's configuration folder."""
    return CostStore(settings_folder() / "costs")


def place_of(loaded: LoadedPair) -> CostKey:
    """Return what the known costs of a pair depend on, or those to be measured now.

    Weights are told apart by their bytes.
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
