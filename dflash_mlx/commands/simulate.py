"""`dflash-mlx simulate`: the block-size controller on recorded costs and synthetic traces."""

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from dflash_mlx.commands.options import JsonOption
from dflash_mlx.errors import BadRequest


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Options of `simulate`."""

    scenario: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run only this scenario; repeatable. [default: all]"),
    ] = None
    seeded: Annotated[int, typer.Option(help="Number of additional generated scenarios.")] = 200
    seed: Annotated[int, typer.Option(help="Seed of the generated scenarios.")] = 1
    worst: Annotated[
        int, typer.Option(help="Number of generated scenarios to print, worst first.")
    ] = 10
    as_json: JsonOption = False


def simulate(options: SimulateOptions) -> None:
    """Run the block-size controller through scenarios without loading a model.

    Speedups are relative to plain decoding. The exit code is 1 if a goal is missed.
    """
    if options.seeded < 0 or options.seed < 0 or options.worst < 0:
        raise BadRequest("--seeded, --seed and --worst need whole numbers >= 0")
    from dflash_mlx.simulate.generate import generate
    from dflash_mlx.simulate.report import as_values, closeness, summarise, table, verdict
    from dflash_mlx.simulate.run import run_auto
    from dflash_mlx.simulate.scenario import find_scenarios

    named = [run_auto(item) for item in find_scenarios(options.scenario or ())]
    generated = (
        []
        if options.scenario
        else [run_auto(item) for item in generate(options.seeded, options.seed)]
    )
    outcomes = named + generated
    if options.as_json:
        typer.echo(json.dumps(as_values(outcomes)))
    else:
        generated.sort(key=closeness)
        for line in table(named + generated[: options.worst]):
            typer.echo(line)
        typer.echo(verdict(summarise(outcomes)))
    if not summarise(outcomes).reached:
        raise typer.Exit(1)
