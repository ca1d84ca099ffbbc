"""`dflash-mlx train`: a draft for any target, made on this machine."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.commands.interrupt import INTERRUPTED, leave, on_interrupt
from dflash_mlx.commands.options import blas_choice
from dflash_mlx.commands.progress import Loading
from dflash_mlx.commands.terminal import Terminal
from dflash_mlx.commands.training_view import Working, show_plan, show_result
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.blas import choose_blas

if TYPE_CHECKING:
    from dflash_mlx.train.job import Result
    from dflash_mlx.train.options import TrainConfig
    from dflash_mlx.train.preparing import Prepared
    from dflash_mlx.train.run_folder import RunFolder

_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Output folder.")]
_Init = Annotated[
    str | None,
    typer.Option(metavar="DRAFT", help="A draft to go on from; auto takes the known one."),
]
_Data = Annotated[
    str,
    typer.Option(
        metavar="FILE|DATASET|self",
        help="Prompts in a .jsonl, .json, .parquet or text file or a data set on the hub, which "
        "the target answers; token ids, taken as they are; or self: the target asks too.",
    ),
]
_Minutes = Annotated[
    float | None, typer.Option(help="Time for everything, writing included.  [default: 60]")
]
_Steps = Annotated[int | None, typer.Option(help="Steps to take, whatever time that needs.")]
_Samples = Annotated[
    int | None, typer.Option(help="Samples to have.  [default: what the time allows]")
]
_Layers = Annotated[
    int | None, typer.Option(help="Layers of the draft.  [default: 5, fewer for small targets]")
]
_Block = Annotated[
    int | None, typer.Option(help="Rows of a block.  [default: 16, for small targets 8]")
]
_Vocabulary = Annotated[
    int | None,
    typer.Option("--draft-vocab", help="Give the draft the N commonest tokens and their head."),
]
_Second = Annotated[
    bool, typer.Option("--dflash2", help="Train a DFlash 2 draft: convolutions and selector.")
]
_Thinking = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="Mode of all answers.  [default: the model's]"),
]
_Temperature = Annotated[float, typer.Option(help="Of the target's answers; 0 is greedy.")]
_MaxRows = Annotated[int, typer.Option(help="Tokens of a sample, at most.")]
_Rate = Annotated[float | None, typer.Option(help="Peak learning rate.  [default: 6e-4]")]
_Weighting = Annotated[str, typer.Option(help="Of a block's rows in the loss: fixed, or d-pace.")]
_Cache = Annotated[
    float | None,
    typer.Option(metavar="GB", help="Disk for the target's features.  [default: half of the free]"),
]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")]
_Force = Annotated[bool, typer.Option("--force", help="Give up a run or a model that is there.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Measure and plan; keep nothing.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def train(
    target: Annotated[str, typer.Argument(help="A nickname, a folder, a .gguf file or a hub id.")],
    out: _Out = None,
    init: _Init = None,
    data: _Data = "self",
    samples: _Samples = None,
    minutes: _Minutes = None,
    steps: _Steps = None,
    layers: _Layers = None,
    block: _Block = None,
    draft_vocab: _Vocabulary = None,
    dflash2: _Second = False,
    thinking: _Thinking = None,
    temperature: _Temperature = 0.0,
    max_rows: _MaxRows = 1024,
    learning_rate: _Rate = None,
    weighting: _Weighting = "fixed",
    cache: _Cache = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    blas: Annotated[str, typer.Option(help="auto, bundled or openblas (Linux).")] = "auto",
    resume: _Resume = False,
    force: _Force = False,
    dry_run: _DryRun = False,
    as_json: _Json = False,
) -> None:
    """Train a DFlash draft for a target, with the target as its teacher.

    Ctrl-C stops a run and loses nothing; --resume goes on with it.
    """
    choose_blas(blas_choice(blas))
    from dflash_mlx.train.options import TrainConfig
    from dflash_mlx.train.shape import Wishes

    if out is None:
        raise BadRequest("train needs a folder for the draft; give one with -o")
    config = TrainConfig(
        target=target,
        out=out,
        init=init,
        data=data,
        samples=samples,
        minutes=minutes,
        steps=steps,
        wishes=Wishes(layers, block, draft_vocab, dflash2),
        thinking=thinking,
        temperature=temperature,
        max_rows=max_rows,
        learning_rate=learning_rate,
        weighting=weighting,
        cache_gb=cache,
        seed=seed,
    )
    if dry_run and (resume or force):
        raise BadRequest("--dry-run plans a new run and keeps nothing; leave out --resume, --force")
    if dry_run:
        _plan(config, as_json)
    else:
        _run(config, resume, force, as_json)


def _plan(config: "TrainConfig", as_json: bool) -> None:
    from dflash_mlx.train.planning import first_plan

    terminal = Terminal()
    prepared = _prepare(config, terminal)
    with on_interrupt(lambda: leave(terminal)):
        terminal.show("measuring this machine, two minutes at most")
        place = config.run_folder.parent
        plan = first_plan(prepared, None, place, time.monotonic)
    show_plan(terminal, prepared, plan)
    if as_json:
        typer.echo(json.dumps(plan.table()))


def _run(asked: "TrainConfig", resume: bool, force: bool, as_json: bool) -> None:
    from dflash_mlx.train.options import TrainConfig, resumed
    from dflash_mlx.train.outcome import check_out
    from dflash_mlx.train.run_folder import RunFolder

    terminal, folder = Terminal(), RunFolder(asked.run_folder)
    check_out(asked.out_folder, force)
    if resume:
        config = resumed(asked, TrainConfig.from_values(folder.facts()["config"]))
        with folder:
            result = _work(_prepare(config, terminal), folder, terminal)
    else:
        folder.check(force)
        prepared = _prepare(asked, terminal)  # may be refused, and then nothing was given up
        with folder.begin(force):
            folder.know(config=asked.as_values())
            result = _work(prepared, folder, terminal)
    if as_json:
        typer.echo(json.dumps(result.table()))
    if not result.finished:
        raise typer.Exit(INTERRUPTED)


def _work(prepared: "Prepared", folder: "RunFolder", terminal: Terminal) -> "Result":
    """Plan what is not planned yet, and do it."""
    from dflash_mlx.system.memory import wired
    from dflash_mlx.train.job import Job
    from dflash_mlx.train.planning import first_plan

    with Working(terminal) as working, on_interrupt(working.stop), wired():
        job = Job(prepared, folder, working.watcher, time.monotonic)
        if "n_samples" not in folder.facts():
            with _leaving(terminal):
                terminal.show("measuring this machine, two minutes at most")
                plan = first_plan(prepared, job.shards, folder.path, time.monotonic)
            show_plan(terminal, prepared, plan)
            job.adopt(plan)
        result = job.run()
    show_result(terminal, result, prepared.config.target)
    return result


@contextmanager
def _leaving(terminal: Terminal) -> Iterator[None]:
    """Let Ctrl-C end the process while there is nothing yet to lose."""
    with on_interrupt(lambda: leave(terminal)):
        yield


def _prepare(config: "TrainConfig", terminal: Terminal) -> "Prepared":
    with Loading(terminal) as loading, _leaving(terminal):
        terminal.show("starting MLX")
        from dflash_mlx.system.machine import this_machine
        from dflash_mlx.train.preparing import prepare

        return prepare(config, this_machine(), loading.hooks)
