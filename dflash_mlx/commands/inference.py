"""Loading a pair and printing one answer, with progress on stderr.

It must not know which command asks.
"""

from typing import TYPE_CHECKING

from dflash_mlx.commands.options import RequestOptions
from dflash_mlx.commands.progress import LoadingProgress, PrefillProgress
from dflash_mlx.commands.terminal import Terminal, exit_now, on_interrupt
from dflash_mlx.system.blas import openblas_advice

if TYPE_CHECKING:
    from dflash_mlx import Engine, GenerationConfig, Result, Stream
    from dflash_mlx.config import ComputeDType, KernelPolicy


def open_pair(
    model: str,
    draft: str,
    terminal: Terminal,
    kernels: "KernelPolicy" = "auto",
    dtype: "ComputeDType" = "auto",
) -> "Engine":
    """Load a pair and return its engine. Ctrl-C during loading ends the process."""
    with LoadingProgress(terminal) as loading:

        def stop() -> None:
            loading.stop()
            exit_now(terminal)

        with on_interrupt(stop):
            terminal.show_status("starting MLX")  # the first import takes a second or more
            from dflash_mlx import load

            return load(model, draft, hooks=loading.hooks, kernels=kernels, dtype=dtype)


def describe(engine: "Engine", config: "GenerationConfig", options: RequestOptions) -> list[str]:
    """Return lines about the settings in effect; the first names the models."""
    loaded = engine.loaded
    request = engine.resolve(config)
    draft = f" + {_short_name(loaded.draft_name)}" if loaded.draft_name else ", no draft"
    draft += " + copies from the context" if request.copies else ""
    sampling, block_size = request.sampling, request.block_size
    auto = (
        f"block size auto, at most {block_size}" if request.adaptive else f"block size {block_size}"
    )
    facts = [auto if block_size > 1 else "plain decoding", sampling.described()]
    if request.thinking is not None:
        facts.append(f"thinking {'on' if request.thinking else 'off'}")
    if loaded.compute.device == "cpu":
        facts.append(f"CPU ({loaded.blas})")
    if loaded.kernels is not None:
        facts.append(f"{loaded.kernels.n_used} of {loaded.kernels.n_cases} kernels")
    lines = [f"{_short_name(loaded.model_name)}{draft}: {', '.join(facts)}"]
    if loaded.blas == "bundled" and options.blas == "auto":
        lines.append(f"OpenBLAS is several times faster here; {openblas_advice()}")
    if unused := options.unused(sampling):
        lines.append(f"{', '.join(unused)}: no effect in greedy decoding; set --temperature")
    return lines


def print_answer(
    stream: "Stream", terminal: Terminal, text: bool = True, keep_running: bool = False
) -> "Result":
    """Write an answer's text as it arrives (unless `text` is False) and return the result.

    Ctrl-C stops the answer at the end of its round; a second Ctrl-C ends the process. During
    prefill the first one ends the process too, unless `keep_running`.
    """
    started = stopping = False
    prefill = PrefillProgress(terminal)

    def stop() -> None:
        nonlocal stopping
        if stopping or not (started or keep_running):
            exit_now(terminal)
        stopping = True
        stream.cancel()
        if not started:
            terminal.write_stderr_raw(
                "\nstopping after this chunk of the prompt; press Ctrl-C again to exit"
            )

    with on_interrupt(stop):
        for chunk in stream:
            started = started or bool(chunk.tokens)
            if chunk.progress and not stopping:
                prefill.show(*chunk.progress)
            if chunk.notice:
                terminal.log(chunk.notice, dim=True)
            if text:
                terminal.write(chunk.text, dim=chunk.thinking)
        result = stream.result()
    terminal.clear_status()
    return result


def _short_name(reference: str) -> str:
    """Return the last part of a model reference."""
    return reference.rsplit("/", 1)[-1].removeprefix("package:")
