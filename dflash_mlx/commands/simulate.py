"""`dflash-mlx simulate`: the width controller against recorded costs and invented texts."""

import json
from typing import Annotated

import typer

from dflash_mlx.errors import BadRequest


def simulate(
    scenario: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this scenario; repeatable. [default: all]"),
    ] = None,
    seeded: Annotated[int, typer.Option(help="Scenarios to generate besides.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the generated ones.")] = 1,
    worst: Annotated[int, typer.Option(help="Generated ones to show, the worst first.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run the width controller through scenarios; loads no model.

    Speeds are in plain decoding's. The exit code is 1 where a goal is missed.
    """
    if seeded < 0 or seed < 0 or worst < 0:
        raise BadRequest("--seeded, --seed and --worst need whole numbers >= 0")
    from dflash_mlx.simulate.generate import generate
    from dflash_mlx.simulate.report import as_values, closeness, summarise, table, verdict
    from dflash_mlx.simulate.run import run_auto
    from dflash_mlx.simulate.scenario import find_scenarios

    named = [run_auto(item) for item in find_scenarios(scenario or ())]
    generated = [] if scenario else [run_auto(item) for item in generate(seeded, seed)]
    outcomes = named + generated
    if as_json:
        typer.echo(json.dumps(as_values(outcomes)))
    else:
        generated.sort(key=closeness)
        for line in table(named + generated[:worst]):
            typer.echo(line)
        typer.echo(verdict(summarise(outcomes)))
    if not summarise(outcomes).reached:
        raise typer.Exit(1)
