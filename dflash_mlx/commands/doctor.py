"""`dflash-mlx doctor`: checks the machine, the installation and one pair, and prints findings."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx import __version__
from dflash_mlx.commands.options import (
    DEFAULT_MODEL,
    BlasOption,
    DraftOption,
    JsonOption,
    ModelOption,
    parse_bits,
    prepare,
)
from dflash_mlx.errors import BadRequest, DFlashError

if TYPE_CHECKING:
    from dflash_mlx.doctor.checkup import Finding
    from dflash_mlx.engine.load import PairFiles
    from dflash_mlx.engine.loaded import LoadedPair
    from dflash_mlx.kernels.autotuner import TuningResult
    from dflash_mlx.kernels.pair_kernels import PairKernels
    from dflash_mlx.pairs.pairing import Choice
    from dflash_mlx.pairs.precision import PrecisionConfig
    from dflash_mlx.system.machine import Machine

_MARKS = {"ok": "ok", "advice": "--", "must": "!!"}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `doctor`."""

    model: ModelOption = DEFAULT_MODEL
    draft: DraftOption = "auto"
    context: Annotated[
        int | None,
        typer.Option(help="Context length that must fit, in tokens.  [default: 8192]"),
    ] = None
    bits: Annotated[
        str, typer.Option(help="Bits per weight of the target: auto, 4, 5, 6, 8 or 16.")
    ] = "auto"
    draft_bits: Annotated[
        str, typer.Option(help="Bits per weight of the draft: auto, 4, 8 or 16.")
    ] = "auto"
    as_machine: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="MAC",
            help="Answer for another Mac, such as 'M2 16GB', computed from bytes: one pair with "
            "--model, else all known pairs; list prints the Macs.",
        ),
    ] = None
    kernels: Annotated[
        bool, typer.Option("--kernels", help="List the Metal kernels of the pair and why.")
    ] = False
    autotune: Annotated[
        bool,
        typer.Option("--autotune", help="Load the pair and autotune its kernels now, up to 20 s."),
    ] = False
    report: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Also measure for about a minute and write versions, chip, kernels and speed to "
            "FILE: JSON without paths or names, to be shared.",
        ),
    ] = None
    blas: BlasOption = "auto"
    as_json: JsonOption = False


def doctor(options: DoctorOptions) -> None:
    """Check the machine, the installation and one pair.

    Downloads nothing; only --autotune and --report read weights. The exit code is 1 if a finding
    must be fixed first (marked !!).
    """
    precision = precision_config(options)
    if options.as_machine is not None:
        _answer_for(options.as_machine, options, precision)
        return
    prepare(options.blas)
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
    if options.autotune and machine.device != "metal":
        raise BadRequest("--autotune needs a Metal device and this machine has none; omit it")
    choice = choose(options.model, options.draft)
    findings += _check_precision(choice, machine, precision, facts)
    findings += _check_pair(choice, options, machine, facts)
    passed = all(finding.level != "must" for finding in findings)
    if options.as_json:
        table = {"ok": passed, "machine": asdict(machine), "pair": facts or None}
        typer.echo(json.dumps({**table, "findings": [asdict(item) for item in findings]}))
    else:
        _print_findings(findings)
    if not passed:
        raise typer.Exit(1)
    if options.report:
        _write_report(options, options.report)


def _write_report(options: DoctorOptions, name: str) -> None:
    """Load the pair, measure it and write the report to the file `name`."""
    from dflash_mlx.commands.inference import open_pair
    from dflash_mlx.commands.terminal import Terminal
    from dflash_mlx.doctor.report import machine_report
    from dflash_mlx.system.json_file import write_json
    from dflash_mlx.system.paths import typed_path

    file, terminal = typed_path(name), Terminal()
    try:
        write_json(file, {})  # a report that cannot be written is not worth the measurement
    except OSError as error:
        raise BadRequest(f"--report: {file} cannot be written ({error.strerror})") from error
    with open_pair(options.model, options.draft, terminal) as engine:
        if engine.loaded.draft_name is None:
            raise BadRequest(f"--report measures a pair and {options.model} has no draft")
        write_json(file, machine_report(engine, terminal.show_status))
        terminal.clear_status()
    terminal.log(f"wrote {file}; please send it as CONTRIBUTING.md describes")


def precision_config(options: DoctorOptions) -> "PrecisionConfig":
    """Return the precision that the options ask for.

    Raises:
        BadRequest: a value is not one of the choices.
    """
    from dflash_mlx.pairs.precision import PrecisionConfig

    return PrecisionConfig(
        bits=parse_bits("--bits", options.bits),
        draft_bits=parse_bits("--draft-bits", options.draft_bits),
        context=options.context,
    )


def _answer_for(name: str, options: DoctorOptions, config: "PrecisionConfig") -> None:
    """Print the precision of one pair or of all known pairs on the Mac called `name`."""
    from dflash_mlx.doctor.precision import check_precision, describe_pair
    from dflash_mlx.pairs import registry
    from dflash_mlx.system.chips import all_macs, read_mac

    if name == "list":
        for mac in all_macs():
            typer.echo(mac.name)
        return
    mac = read_mac(name)
    facts: dict[str, Any] = {"machine": mac.name, "usable_bytes": mac.usable_bytes}
    if options.model == DEFAULT_MODEL:
        for card in registry.cards():
            typer.echo(describe_pair(card, mac.chip, mac.usable_bytes, config))
        return
    found = registry.find(options.model)
    if found is None:
        raise BadRequest(
            f"--as answers for known pairs and {options.model!r} is not one; see dflash-mlx models"
        )
    findings = list(check_precision(found, mac.chip, mac.usable_bytes, config, facts))
    if options.as_json:
        values = {**facts, "findings": [asdict(item) for item in findings]}
        typer.echo(json.dumps(values))
    else:
        _print_findings(findings)
    if any(finding.level == "must" for finding in findings):
        raise typer.Exit(1)


def _check_precision(
    choice: "Choice", machine: "Machine", config: "PrecisionConfig", facts: dict[str, Any]
) -> Iterator["Finding"]:
    """Yield the precision of a known pair on this Mac; nothing on a CPU, which uses float32."""
    from dflash_mlx.doctor.precision import check_precision
    from dflash_mlx.system.chips import GIB, find_chip

    card = choice.card
    if card is None or choice.target != card.target or machine.device != "metal":
        return
    if machine.usable_bytes is None:
        return
    chip = find_chip(machine.chip, (machine.memory_bytes or 0) // GIB)
    yield from check_precision(card, chip, machine.usable_bytes, config, facts)


def _print_findings(findings: "list[Finding]") -> None:
    for finding in findings:
        typer.echo(f"{_MARKS[finding.level]}  {finding.subject:16} {finding.text}")
        if finding.remedy:
            typer.echo(f"{'':20} do: {finding.remedy}")


def _check_pair(
    choice: "Choice", options: DoctorOptions, machine: "Machine", facts: dict[str, Any]
) -> Iterator["Finding"]:
    """Yield findings about a pair's files and, if they are here, its memory; fill in `facts`."""
    from dflash_mlx.doctor.checkup import Finding, check_files, check_fit, locate
    from dflash_mlx.doctor.combinations import check_combination
    from dflash_mlx.doctor.fit import longest, need, outline
    from dflash_mlx.doctor.outlook import check_auto
    from dflash_mlx.engine.load import PairFiles
    from dflash_mlx.engine.resolved_request import resolve_request
    from dflash_mlx.hub.pins import Pins
    from dflash_mlx.kernels.pair_kernels import install_kernels
    from dflash_mlx.pairs.model_files import check_folder
    from dflash_mlx.pairs.precision import DEFAULT_CONTEXT
    from dflash_mlx.system.settings import settings_folder

    target, draft = locate(choice, Pins(settings_folder()))
    yield from check_files(choice, target, draft)
    if target is None or (choice.draft and draft is None):
        return
    files = PairFiles(choice, target, draft)
    try:
        for found in (target, draft):
            if found is not None and found.path.is_dir():
                check_folder(found.path)
        loaded = outline(files)
        loaded = replace(loaded, kernels=install_kernels(loaded.pair, "auto"))
    except DFlashError as error:
        yield Finding("pair", "must", " ".join(str(error).split()))
        return
    context_length = loaded.pair.target.shape.context_length
    if options.context and options.context > context_length:
        text = f"--context is {options.context}; the model's context length is {context_length}"
        yield Finding("context", "must", text, f"--context {context_length} or less")
    n_tokens = min(options.context or DEFAULT_CONTEXT, context_length)
    wanted = need(loaded.pair, n_tokens)
    at_most = longest(loaded.pair, machine.usable_bytes) if machine.usable_bytes else None
    request = resolve_request(loaded)
    facts |= {
        "target": loaded.model_name,
        "draft": loaded.draft_name,
        "block_size": request.block_size,
        "sampling": loaded.sampling.described(),
        "thinking": request.thinking,
        "max_context": context_length,
        "context_that_fits": at_most,
        "need": {**asdict(wanted), "peak_bytes": wanted.peak_bytes},
    }
    settings = f"block size up to {facts['block_size']}, {facts['sampling']}"
    yield Finding("settings", "ok", settings)
    yield check_fit(wanted, machine, at_most)
    yield from check_combination(loaded, machine.chip)
    yield from check_auto(loaded, n_tokens, facts)
    if options.kernels or options.autotune:
        yield from _check_kernels(loaded, files, options.autotune, facts)


def _check_kernels(
    loaded: "LoadedPair", files: "PairFiles", autotune: bool, facts: dict[str, Any]
) -> Iterator["Finding"]:
    """Yield a finding per kernel and shape: whether it is used and why; fill in `facts`.

    With `autotune` the pair is loaded and kernels without a result are autotuned. Otherwise a
    pair without weights is enough.
    """
    from dflash_mlx.doctor.checkup import Finding
    from dflash_mlx.doctor.report import kernel_values

    kernels = _autotuned(files) if autotune else loaded.kernels
    results = kernels.all_results() if kernels else []
    facts["kernels"] = [kernel_values(result) for result in results]
    if not results:
        yield Finding("kernels", "ok", "none: no Metal device or no draft; MLX's own kernels run")
    for result in results:
        use = _geometry(result) or "stock MLX"
        yield Finding(result.kernel, "ok", f"{result.shape}: {use}; {result.reason}")


def _autotuned(files: "PairFiles") -> "PairKernels | None":
    """Load the pair, autotune its kernels and return them; None if it has none."""
    from dflash_mlx.commands.terminal import Terminal
    from dflash_mlx.config import CacheConfig
    from dflash_mlx.engine.load import LoadHooks, assemble
    from dflash_mlx.kernels.pair_kernels import default_autotuner, install_kernels
    from dflash_mlx.loading.compute import compute_here

    terminal = Terminal()
    hooks = LoadHooks(on_step=terminal.show_status)
    pair = assemble(files, compute_here(), CacheConfig(), hooks).pair
    autotuner = default_autotuner("auto", retry=True)
    kernels = install_kernels(pair, "auto", autotuner=autotuner)
    if kernels is not None:
        kernels.autotune(terminal.show_status)
    terminal.clear_status()
    return kernels


def _geometry(result: "TuningResult[Any]") -> str:
    """Return the chosen geometry as text, empty for MLX's own kernel."""
    if result.geometry is None:
        return ""
    parts = asdict(result.geometry).items()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts) or "used"
