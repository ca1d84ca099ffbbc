"""What was found out about the kernels of a pair, for `doctor --kernels`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_mlx.doctor.checkup import Finding
    from dflash_mlx.engine.load import PairFiles
    from dflash_mlx.engine.loaded import LoadedPair
    from dflash_mlx.kernels.gate import Verdict
    from dflash_mlx.kernels.pair_kernels import PairKernels


def check_kernels(
    loaded: "LoadedPair", files: "PairFiles", race: bool, facts: dict[str, Any]
) -> Iterator["Finding"]:
    """Say of each kernel and shape of a pair (an outline will do) whether it is used, and why.

    With `race` the pair is read into memory and what was never raced is raced now. Each answer
    is put into `facts` as plain values too.
    """
    from dflash_mlx.doctor.checkup import Finding

    kernels = _raced(files) if race else loaded.kernels
    verdicts = kernels.answers() if kernels else []
    facts["kernels"] = [_plain(verdict) for verdict in verdicts]
    if not verdicts:
        yield Finding("kernels", "ok", "none: no Metal device, or no draft; stock MLX computes all")
    for verdict in verdicts:
        use = _geometry(verdict) or "stock MLX"
        yield Finding(verdict.kernel, "ok", f"{verdict.shape}: {use}; {verdict.reason}")


def _raced(files: "PairFiles") -> "PairKernels | None":
    """Load the pair and race what was never raced; None where it has no kernels."""
    from dflash_mlx.commands.terminal import Terminal
    from dflash_mlx.config import CacheConfig
    from dflash_mlx.engine.load import LoadHooks, assemble
    from dflash_mlx.kernels.pair_kernels import put_kernels
    from dflash_mlx.loading.compute import compute_here

    terminal = Terminal()
    hooks = LoadHooks(on_step=terminal.show)
    kernels = put_kernels(assemble(files, compute_here(), CacheConfig(), hooks).pair, "auto")
    if kernels is not None:
        kernels.race(terminal.show)
    terminal.erase()
    return kernels


def _plain(verdict: "Verdict[Any]") -> dict[str, Any]:
    geometry = None if verdict.geometry is None else asdict(verdict.geometry)
    return {
        "kernel": verdict.kernel,
        "shape": verdict.shape,
        "geometry": geometry,
        "reason": verdict.reason,
    }


def _geometry(verdict: "Verdict[Any]") -> str:
    """Return the geometry in words, empty for stock MLX."""
    if verdict.geometry is None:
        return ""
    parts = asdict(verdict.geometry).items()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts) or "used"
