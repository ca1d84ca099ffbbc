"""From options to a loaded pair: progress while it loads, then one line on what was loaded."""

from typing import TYPE_CHECKING

from dflash_mlx.commands.interrupt import leave, on_interrupt
from dflash_mlx.commands.options import RequestOptions
from dflash_mlx.commands.progress import Loading
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.system.blas import PACKAGE

if TYPE_CHECKING:
    from dflash_mlx import Engine, GenerationConfig
    from dflash_mlx.config import KernelPolicy


def open_pair(
    model: str, draft: str, terminal: Terminal, kernels: "KernelPolicy" = "auto"
) -> "Engine":
    """Load a pair. Ctrl-C meanwhile ends the process at once."""
    with Loading(terminal) as loading:

        def stop() -> None:
            loading.stop()
            leave(terminal)

        with on_interrupt(stop):
            terminal.show("starting MLX")  # a second, and more where nothing is in memory yet
            from dflash_mlx import load

            return load(model, draft, hooks=loading.hooks, kernels=kernels)


def describe(engine: "Engine", config: "GenerationConfig", options: RequestOptions) -> list[str]:
    """Return the settings in force, the first line being what was loaded."""
    loaded = engine.loaded
    draft = f" + {_short(loaded.draft_name)}" if loaded.draft_name else ", no draft"
    request = engine.resolve(config)
    sampling, block = request.sampling, request.block_size
    auto = f"block size auto, at most {block}" if request.adaptive else f"block size {block}"
    facts = [auto if block > 1 else "plain decoding", sampling.described()]
    if request.thinking is not None:
        facts.append(f"thinking {'on' if request.thinking else 'off'}")
    if loaded.compute.device == "cpu":
        facts.append(f"CPU ({loaded.blas})")
    if loaded.kernels is not None:
        facts.append(f"{loaded.kernels.n_used} of {loaded.kernels.n_cases} kernels")
    lines = [f"{_short(loaded.model_name)}{draft}: {', '.join(facts)}"]
    if loaded.blas == "bundled" and options.blas == "auto":
        lines.append(f"OpenBLAS would be several times faster here: apt install {PACKAGE}")
    if idle := options.idle(sampling):
        lines.append(f"{', '.join(idle)} changes nothing in greedy decoding; see --temperature")
    return lines


def _short(reference: str) -> str:
    """Return a reference without the place that it comes from."""
    return reference.rsplit("/", 1)[-1].removeprefix("package:")
