"""`dflash-mlx doctor`: is this machine ready, what would be loaded, and does it fit?"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx import __version__
from dflash_mlx.commands.kernel_view import check_kernels
from dflash_mlx.commands.options import blas_choice
from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.system.blas import choose_blas

if TYPE_CHECKING:
    from dflash_mlx.doctor.checkup import Finding
    from dflash_mlx.pairs.pairing import Choice
    from dflash_mlx.system.machine import Machine

_MARKS = {"ok": "ok", "advice": "--", "must": "!!"}


def doctor(
    model: Annotated[
        str, typer.Option("--model", "-m", help="The pair to look at, named as for chat.")
    ] = "smollm2-135m",
    draft: Annotated[str, typer.Option(help="auto, none, or a name.")] = "auto",
    context: Annotated[int, typer.Option(help="Tokens of context to make room for.")] = 4096,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Say which Metal kernels the pair uses, and why.")
    ] = False,
    autotune: Annotated[
        bool,
        typer.Option(
            "--autotune", help="Load the pair and autotune its kernels now (Metal), up to 20 s."
        ),
    ] = False,
    blas: Annotated[str, typer.Option(help="auto, bundled or openblas (Linux).")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check machine, installation and one pair. Downloads nothing; only --autotune reads weights.

    The exit code is 1 where something must be done first (marked !!).
    """
    if context < 1:
        raise BadRequest(f"--context is {context}; it needs a whole number > 0")
    choose_blas(blas_choice(blas))
    from dflash_mlx.doctor.checkup import (
        Finding,
        check_cache,
        check_device,
        check_memory,
        check_packages,
    )
    from dflash_mlx.pairs.pairing import choose
    from dflash_mlx.system.machine import this_machine

    facts: dict[str, Any] = {}
    machine = this_machine()
    findings = [Finding("dflash-mlx", "ok", __version__), *check_packages()]
    findings += [*check_device(machine), check_memory(machine), check_cache()]
    if autotune:
        _refuse_autotune(machine)
    looks = _Looks(context, kernels or autotune, autotune)
    findings += _check_pair(choose(model, draft), looks, machine, facts)
    fine = all(finding.level != "must" for finding in findings)
    if as_json:
        table = {"ok": fine, "machine": asdict(machine), "pair": facts or None}
        typer.echo(json.dumps({**table, "findings": [asdict(item) for item in findings]}))
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.level]}  {finding.subject:16} {finding.text}")
            if finding.remedy:
                typer.echo(f"{'':20} do: {finding.remedy}")
    if not fine:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Looks:
    """What to look at besides the files: a context of `n_rows`, the kernels, autotuning now."""

    n_rows: int
    kernels: bool
    autotune: bool


def _refuse_autotune(machine: "Machine") -> None:
    if machine.device != "metal":
        raise BadRequest(
            "--autotune needs a Metal device, and this machine has none; leave the option out"
        )


def _check_pair(
    choice: "Choice", looks: _Looks, machine: "Machine", facts: dict[str, Any]
) -> Iterator["Finding"]:
    """Look at a pair's files and, where they are here, at the pair; fill in `facts`."""
    from dflash_mlx.doctor.checkup import Finding, check_files, check_fit, locate
    from dflash_mlx.doctor.combinations import check_combination
    from dflash_mlx.doctor.fit import longest, need, outline
    from dflash_mlx.doctor.outlook import check_auto
    from dflash_mlx.engine.load import PairFiles
    from dflash_mlx.engine.resolved_request import resolve_request
    from dflash_mlx.hub.pins import Pins
    from dflash_mlx.kernels.pair_kernels import install_kernels
    from dflash_mlx.system.settings import settings_folder

    target, draft = locate(choice, Pins(settings_folder()))
    yield from check_files(choice, target, draft)
    if target is None or (choice.draft and draft is None):
        return
    files = PairFiles(choice, target, draft)
    try:
        loaded = outline(files)
        loaded = replace(loaded, kernels=install_kernels(loaded.pair, "auto"))
    except DFlashError as error:
        yield Finding("pair", "must", " ".join(str(error).split()))
        return
    request = resolve_request(loaded)
    room = loaded.pair.target.shape.context_length
    if looks.n_rows > room:
        text = f"{looks.n_rows} tokens were asked for, and this model's context holds {room}"
        yield Finding("context", "must", text, f"--context {room} or less")
        looks = replace(looks, n_rows=room)
    wanted = need(loaded.pair, looks.n_rows)
    at_most = longest(loaded.pair, machine.usable_bytes) if machine.usable_bytes else None
    facts |= {
        "target": loaded.model_name,
        "draft": loaded.draft_name,
        "block_size": request.block_size,
        "sampling": loaded.sampling.described(),
        "thinking": request.thinking,
        "max_context": room,
        "context_that_fits": at_most,
        "need": {**asdict(wanted), "peak_bytes": wanted.peak_bytes},
    }
    settings = f"block size up to {facts['block_size']}, {facts['sampling']}"
    yield Finding("settings", "ok", settings)
    yield check_fit(wanted, machine, at_most)
    yield from check_combination(loaded, machine.chip)
    yield from check_auto(loaded, looks.n_rows, facts)
    if looks.kernels:
        yield from check_kernels(loaded, files, looks.autotune, facts)
