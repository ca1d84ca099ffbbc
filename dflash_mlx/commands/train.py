"""`dflash-mlx train`: trains a draft for a target on this machine."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.commands.options import BlasOption, JsonOption, ThinkingOption, prepare
from dflash_mlx.commands.progress import LoadingProgress
from dflash_mlx.commands.terminal import INTERRUPTED, Terminal, exit_now, on_interrupt
from dflash_mlx.commands.training_view import TrainingProgressView, print_plan, print_result
from dflash_mlx.errors import BadRequest

if TYPE_CHECKING:
    from dflash_mlx.train.run.job import TrainingResult
    from dflash_mlx.train.run.options import TrainConfig
    from dflash_mlx.train.run.run_folder import RunFolder
    from dflash_mlx.train.run.setup import TrainingSetup


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `train`."""

    target: Annotated[
        str, typer.Argument(help="Target: nickname, folder, .gguf file or Hugging Face id.")
    ]
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder.")] = None
    init: Annotated[
        str | None,
        typer.Option(metavar="DRAFT", help="Draft to initialise from; auto: the known draft."),
    ] = None
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE|DATASET|self",
            help="Training data: prompts in a .jsonl, .json, .parquet or text file or a data set "
            "on the hub, which the target answers; token ids, used unchanged; or self: the target "
            "writes the prompts too.",
        ),
    ] = "self"
    samples: Annotated[
        int | None,
        typer.Option(help="Number of training samples.  [default: as many as the time allows]"),
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option(help="Total time in minutes, data generation included.  [default: 60]"),
    ] = None
    steps: Annotated[
        int | None, typer.Option(help="Training steps, regardless of the time they take.")
    ] = None
    layers: Annotated[
        int | None, typer.Option(help="Layers of the draft.  [default: 5, fewer for small targets]")
    ] = None
    block_size: Annotated[
        int | None,
        typer.Option(
            help="Block size: tokens verified per round, including the anchor.  [default: 16, for "
            "small targets 8]"
        ),
    ] = None
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Restrict the draft to the N most frequent tokens, with its own head."
        ),
    ] = None
    dflash2: Annotated[
        bool,
        typer.Option("--dflash2", help="Train a DFlash 2 draft, with convolutions and selector."),
    ] = False
    thinking: ThinkingOption = None
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature of the target's answers; 0 is greedy.")
    ] = 0.0
    max_seq_length: Annotated[
        int, typer.Option(help="Maximum length of a training sample, in tokens.")
    ] = 1024
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate.  [default: 6e-4]")
    ] = None
    weighting: Annotated[
        str, typer.Option(help="Per-position loss weighting: fixed, or d-pace.")
    ] = "fixed"
    cache: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            help="Disk space for the target's hidden states.  [default: half of the free space]",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of data, initial weights and order.")] = 0
    blas: BlasOption = "auto"
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing run or model.")] = (
        False
    )
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure this machine, print the plan, and stop.")
    ] = False
    as_json: JsonOption = False


def train(options: TrainOptions) -> None:
    """Train a DFlash draft for a target, with the target as the teacher.

    Ctrl-C stops a run without losing work; --resume continues it.
    """
    prepare(options.blas)
    from dflash_mlx.train.model.shape import DraftOverrides
    from dflash_mlx.train.run.options import TrainConfig

    if options.out is None:
        raise BadRequest("train needs an output folder; set --out")
    config = TrainConfig(
        target=options.target,
        out=options.out,
        init=options.init,
        data=options.data,
        samples=options.samples,
        minutes=options.minutes,
        steps=options.steps,
        overrides=DraftOverrides(
            options.layers, options.block_size, options.draft_vocab, options.dflash2
        ),
        thinking=options.thinking,
        temperature=options.temperature,
        max_seq_length=options.max_seq_length,
        learning_rate=options.learning_rate,
        weighting=options.weighting,
        cache_gb=options.cache,
        seed=options.seed,
    )
    if options.dry_run and (options.resume or options.force):
        raise BadRequest("--dry-run keeps nothing; omit --resume and --force")
    if options.dry_run:
        _plan(config, options.as_json)
    else:
        _run(config, options)


def _plan(config: "TrainConfig", as_json: bool) -> None:
    from dflash_mlx.train.run.planning import first_plan

    terminal = Terminal()
    setup = _set_up(config, terminal)
    with _exit_on_interrupt(terminal):
        terminal.show_status("measuring this machine, two minutes at most")
        plan = first_plan(setup, None, config.run_folder.parent, time.monotonic)
    print_plan(terminal, setup, plan)
    if as_json:
        typer.echo(json.dumps(plan.table()))


def _run(config: "TrainConfig", options: TrainOptions) -> None:
    from dflash_mlx.train.run.options import resume_config
    from dflash_mlx.train.run.result import check_out
    from dflash_mlx.train.run.run_folder import RunFolder

    terminal, folder = Terminal(), RunFolder(config.run_folder)
    check_out(config.out_folder, options.force)
    if options.resume:
        stored = resume_config(config, folder.stored_config())
        with folder:
            result = _train(_set_up(stored, terminal), folder, terminal)
    else:
        folder.check(options.force)
        # before the old run is deleted, because the setup can still refuse the request
        setup = _set_up(config, terminal)
        with folder.create(options.force):
            folder.update_state(config=config)
            result = _train(setup, folder, terminal)
    if options.as_json:
        typer.echo(json.dumps(result.table()))
    if not result.finished:
        raise typer.Exit(INTERRUPTED)


def _train(setup: "TrainingSetup", folder: "RunFolder", terminal: Terminal) -> "TrainingResult":
    """Plan the run if it has no plan yet, train, and print the result."""
    from dflash_mlx.system.memory import wired
    from dflash_mlx.train.run.job import TrainingJob
    from dflash_mlx.train.run.planning import first_plan

    with TrainingProgressView(terminal) as view, on_interrupt(view.stop), wired():
        job = TrainingJob(setup, folder, view.hooks, time.monotonic)
        if folder.state().n_samples is None:
            with _exit_on_interrupt(terminal):
                terminal.show_status("measuring this machine, two minutes at most")
                plan = first_plan(setup, job.shards, folder.path, time.monotonic)
            print_plan(terminal, setup, plan)
            job.adopt(plan)
        result = job.run()
    print_result(terminal, result, setup.config.target)
    return result


@contextmanager
def _exit_on_interrupt(terminal: Terminal) -> Iterator[None]:
    """End the process on Ctrl-C while there is no work to save."""
    with on_interrupt(lambda: exit_now(terminal)):
        yield


def _set_up(config: "TrainConfig", terminal: Terminal) -> "TrainingSetup":
    with LoadingProgress(terminal) as loading, _exit_on_interrupt(terminal):
        terminal.show_status("starting MLX")
        from dflash_mlx.system.machine import this_machine
        from dflash_mlx.train.run.setup import set_up

        return set_up(config, this_machine(), loading.hooks)
