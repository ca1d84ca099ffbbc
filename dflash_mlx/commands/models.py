"""`dflash-mlx models`: pairs that have a nickname, and what is on this machine."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dflash_mlx.inventory import Item, PairItem


def models(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the pairs that have a nickname, and what is on this machine; asks no network."""
    from dflash_mlx.inventory import cached_here, converted_here, pairs_here
    from dflash_mlx.pins import Pins, default_folder

    pins = Pins(default_folder())
    pairs, folders = pairs_here(pins), converted_here(pins)
    known = {name for pair in pairs for name in (pair.target.reference, pair.draft.reference)}
    known |= {name for pair in pairs for name in (*pair.card.targets, pair.card.fallback or "")}
    cached = cached_here(known)
    if as_json:
        table = {
            "pairs": [_pair(pair) for pair in pairs],
            "converted": [_item(item) for item in folders],
            "cached": [{**_item(item), "kind": kind} for item, kind in cached],
        }
        typer.echo(json.dumps(table))
        return
    for pair in pairs:
        _show(pair)
    for item in folders:
        typer.echo(f"converted  {item.reference}  {_size(item)}")
    for item, kind in cached:
        typer.echo(f"cached {kind}  {item.reference}  {_size(item)}")


def _show(pair: "PairItem") -> None:
    card = pair.card
    thinking = {None: "", True: ", thinking on", False: ", thinking off"}[card.thinking]
    names = f" ({', '.join(card.aliases)})" if card.aliases else ""
    typer.echo(f"{card.nickname}{names}: {card.family}, block {card.block or 'own'}{thinking}")
    typer.echo(f"  target  {pair.target.reference}  {_size(pair.target, card.target_bytes)}")
    for build in pair.targets:
        typer.echo(f"     also  {build.reference}  {_size(build)}")
    typer.echo(f"  draft   {pair.draft.reference}  {_size(pair.draft, card.draft_bytes)}")


def _size(item: "Item", announced: int | None = None) -> str:
    from dflash_mlx.download import spelled_bytes

    if item.n_bytes is not None:
        return f"here, {spelled_bytes(item.n_bytes)}"
    return f"not here, about {spelled_bytes(announced)}" if announced else "not here"


def _pair(pair: "PairItem") -> dict[str, Any]:
    card = pair.card
    return {
        "nickname": card.nickname,
        "aliases": card.aliases,
        "family": card.family,
        "block": card.block,
        "thinking": card.thinking,
        "licence": card.licence,
        "target": {**_item(pair.target), "revision": card.target_revision},
        "draft": {**_item(pair.draft), "revision": card.draft_revision},
        "builds_here": [_item(item) for item in pair.targets],
        "note": card.note,
    }


def _item(item: "Item") -> dict[str, Any]:
    path = str(item.path) if item.path else None
    return {"reference": item.reference, "path": path, "bytes": item.n_bytes}
