"""Formats the tuning results of a pair for `doctor --kernels`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_mlx.doctor.checkup import Finding
    from dflash_mlx.engine.load import PairFiles
    from dflash_mlx.engine.loaded import LoadedPair
    from dflash_mlx.kernels.autotuner import TuningResult
    from dflash_mlx.kernels.pair_kernels import PairKernels


def check_kernels(
    loaded: "LoadedPair", files: "PairFiles", autotune: bool, facts: dict[str, Any]
) -> Iterator["Finding"]:
    """Yield a finding per tuning case: the kernel, the shape, the choice and the reason.

    `loaded` may be an outline without weights. With `autotune` the pair is loaded and the cases
    without a stored result are tuned now. `facts["kernels"]` receives the results as plain values.
    """
    from dflash_mlx.doctor.checkup import Finding

    kernels = _autotuned(files) if autotune else loaded.kernels
    results = kernels.all_results() if kernels else []
    facts["kernels"] = [_plain(result) for result in results]
    if not results:
        yield Finding("kernels", "ok", "no Metal device or no draft: stock MLX computes everything")
    for result in results:
        use = _geometry(result) or "stock MLX"
        yield Finding(result.kernel, "ok", f"{result.shape}: {use}; {result.reason}")


def _autotuned(files: "PairFiles") -> "PairKernels | None":
    """Load the pair and tune the cases without a stored result; None where it has no kernels."""
    from dflash_mlx.commands.terminal import Terminal
    from dflash_mlx.config import CacheConfig
    from dflash_mlx.engine.load import LoadHooks, assemble
    from dflash_mlx.kernels.pair_kernels import install_kernels
    from dflash_mlx.loading.compute import compute_here

    terminal = Terminal()
    hooks = LoadHooks(on_step=terminal.show)
    kernels = install_kernels(assemble(files, compute_here(), CacheConfig(), hooks).pair, "auto")
    if kernels is not None:
        kernels.autotune(terminal.show)
    terminal.erase()
    return kernels


def _plain(result: "TuningResult[Any]") -> dict[str, Any]:
    geometry = None if result.geometry is None else asdict(result.geometry)
    return {
        "kernel": result.kernel,
        "shape": result.shape,
        "geometry": geometry,
        "reason": result.reason,
    }


def _geometry(result: "TuningResult[Any]") -> str:
    """Return the geometry in words, empty for stock MLX."""
    if result.geometry is None:
        return ""
    parts = asdict(result.geometry).items()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts) or "used"
