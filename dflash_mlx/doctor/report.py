"""What a Mac owner shares: versions, chip, kernel results and a short benchmark, as plain values.

It must not contain paths, host names, user names or texts of prompts.
"""

from dataclasses import asdict
from typing import Any, Final

from dflash_mlx.bench.arms import PLAIN
from dflash_mlx.bench.forwards import forwards, memory_speed
from dflash_mlx.bench.run import BenchConfig, BenchProgress, run
from dflash_mlx.bench.suites import KINDS, bundled
from dflash_mlx.bench.summary import summarise
from dflash_mlx.bench.thermal import thermal_state
from dflash_mlx.engine.engine import Engine
from dflash_mlx.kernels.autotuner import TuningResult
from dflash_mlx.pairs import registry
from dflash_mlx.system.machine import this_machine

REPORT_FORMAT: Final = 1

_CONFIG: Final = BenchConfig(n_tokens=128, repeats=1)
"""One answer of 128 tokens per kind and arm: about a minute for an 8B model on a Max chip, by
bytes per token and bandwidth. Longer runs are `dflash-mlx bench`."""


def machine_report(engine: Engine, on_step: BenchProgress) -> dict[str, Any]:
    """Return the report about one pair on this machine; takes about a minute.

    Kernels without a result are autotuned first, on Metal.

    Args:
        engine: the loaded pair, which must have a draft.
        on_step: receives one line per step.
    """
    engine.autotune_kernels(on_step)
    measured = run(engine, bundled(tuple(KINDS), 1), _CONFIG, on_step)
    bare = []
    if measured.interrupted_reason is None:
        sizes = sorted({1, 4, engine.resolve().block_size})
        bare = forwards(engine, list(range(1, 65)), sizes)
    bench = summarise(engine, measured, _CONFIG, bare, memory_speed(engine), thermal_state())
    kernels = engine.loaded.kernels
    machine = asdict(this_machine())
    return {
        "format": REPORT_FORMAT,
        "created_at": bench.created_at,
        "machine": {**bench.machine, **machine},
        "pair": _names(engine),
        "kernels": [kernel_values(result) for result in (kernels.all_results() if kernels else [])],
        "bench": {
            "settings": bench.settings,
            "exact": bench.exact,
            "figures": [asdict(figure) for figure in bench.figures],
            "forwards": [asdict(forward) for forward in bench.forwards],
            "read_bytes_per_s": bench.read_bytes_per_s,
            "memory_bytes_per_s": bench.memory_bytes_per_s,
            "peak_memory_bytes": bench.peak_memory_bytes,
            "thermal": bench.thermal,
            "verdict": bench.verdict,
            "baseline": PLAIN,
        },
    }


def kernel_values(result: TuningResult[Any]) -> dict[str, Any]:
    """Return the result of one tuning case as plain values."""
    geometry: Any = result.geometry  # a dataclass of ints, which its type variable cannot say
    return {
        "kernel": result.kernel,
        "shape": result.shape,
        "geometry": None if geometry is None else asdict(geometry),
        "reason": result.reason,
    }


def _names(engine: Engine) -> dict[str, Any]:
    """Return the published names of the pair, None for folders of this machine, and its shape."""
    loaded = engine.loaded
    card = registry.card_for(loaded.model_name)
    return {
        "target": card.target if card else None,
        "draft": card.draft if card and card.draft == loaded.draft_name else None,
        "family": loaded.pair.target.shape.family,
        "quantized": loaded.quantized,
        "step_bytes": loaded.pair.target.shape.step_bytes,
        "block_size": engine.resolve().block_size,
    }
