"""Loading a pair and printing one answer, with progress on stderr.

It must not know which command asks.
"""

from typing import TYPE_CHECKING

from dflash_mlx.commands.options import RequestOptions, parse_bits
from dflash_mlx.commands.progress import LoadingProgress, PrefillProgress
from dflash_mlx.commands.terminal import Terminal, exit_now, on_interrupt
from dflash_mlx.errors import BadRequest
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
    bits: str = "auto",
) -> "Engine":
    """Load a pair and return its engine. Ctrl-C during loading ends the process.

    `bits` selects the published build of a known pair's target; see `_build_for_machine`.
    """
    with LoadingProgress(terminal) as loading:

        def stop() -> None:
            loading.stop()
            exit_now(terminal)

        with on_interrupt(stop):
            terminal.show_status("starting MLX")  # the first import takes a second or more
            from dflash_mlx import load

            build = _build_for_machine(model, bits, terminal)
            return load(build, draft, hooks=loading.hooks, kernels=kernels, dtype=dtype)


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


def _build_for_machine(model: str, bits: str, terminal: Terminal) -> str:
    """Return the build of a known pair's target to load, and log the choice; else `model`.

    Automatic on Metal only: on a CPU weights are converted to float32, so fewer bits save nothing.

    Raises:
        BadRequest: no build has the requested bits, or nothing fits this machine.
    """
    from dflash_mlx.hub.builds import build_with_bits, choose_build
    from dflash_mlx.hub.pins import Pins
    from dflash_mlx.hub.resolve import find_here
    from dflash_mlx.pairs import registry
    from dflash_mlx.pairs.pairing import choose
    from dflash_mlx.pairs.precision import PrecisionConfig
    from dflash_mlx.system.chips import GIB, find_chip
    from dflash_mlx.system.machine import this_machine
    from dflash_mlx.system.settings import settings_folder

    config = PrecisionConfig(bits=parse_bits("--bits", bits))
    choice = choose(model)
    card = registry.find(model) if choice.card is not None else None
    if card is None:
        if config.bits != "auto":
            raise BadRequest(
                f"--bits {bits} selects a build of a known pair and {model} is not the nickname of "
                "one; give the folder or the id of a build, without --bits"
            )
        return model
    machine = this_machine()
    if machine.device != "metal" or machine.usable_bytes is None:
        build = None if config.bits == "auto" else build_with_bits(card, int(config.bits))
        if build is None and config.bits != "auto":
            raise BadRequest(f"--bits is {bits} and no such build of {model} is published")
        return build or model
    pins = Pins(settings_folder())
    chip = find_chip(machine.chip, (machine.memory_bytes or 0) // GIB)

    def is_here(reference: str) -> bool:
        revision = card.target_revision if reference == card.target else None
        return find_here(reference, pins=pins, revision=revision) is not None

    chosen = choose_build(card, chip, machine.usable_bytes, config, is_here)
    if chosen is None:
        return model
    terminal.log(chosen[1], dim=True)
    return model if chosen[0] == card.target else chosen[0]
