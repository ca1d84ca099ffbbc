"""`dflash-mlx models`: pairs that have a nickname, and what is on this machine."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dflash_mlx.hub.inventory import Item, PairItem


def models(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the pairs that have a nickname, and what is on this machine; asks no network."""
    from dflash_mlx.hub.inventory import by_need, cached_here, converted_here, pairs_here
    from dflash_mlx.hub.pins import Pins
    from dflash_mlx.system.machine import this_machine
    from dflash_mlx.system.settings import settings_folder

    pins = Pins(settings_folder())
    pairs, folders = by_need(pairs_here(pins)), converted_here(pins)
    room = this_machine().usable_bytes
    known = {name for pair in pairs for name in (pair.target.reference, pair.draft.reference)}
    known |= {name for pair in pairs for name in (*pair.card.targets, pair.card.fallback or "")}
    cached = cached_here(known)
    if as_json:
        table = {
            "pairs": [_pair(pair, room) for pair in pairs],
            "converted": [_item(item) for item in folders],
            "cached": [{**_item(item), "kind": kind} for item, kind in cached],
        }
        typer.echo(json.dumps(table))
        return
    for pair in pairs:
        _show(pair, room)
    for item in folders:
        typer.echo(f"converted  {item.reference}  {_size(item)}")
    for item, kind in cached:
        typer.echo(f"cached {kind}  {item.reference}  {_size(item)}")


def _show(pair: "PairItem", room: int | None) -> None:
    card = pair.card
    thinking = {None: "", True: ", thinking on", False: ", thinking off"}[card.thinking]
    names = f" ({', '.join(card.aliases)})" if card.aliases else ""
    block = f"block size {card.block_size or 'own'}"
    typer.echo(f"{card.nickname}{names}: {card.family}, {block}{thinking}")
    if pair.need_bytes is not None:
        typer.echo(f"  needs   {_need(pair)}{_FITS[_fits(pair, room)]}")
    typer.echo(f"  target  {pair.target.reference}  {_size(pair.target, card.target_bytes)}")
    for build in pair.targets:
        typer.echo(f"     also  {build.reference}  {_size(build)}")
    typer.echo(f"  draft   {pair.draft.reference}  {_size(pair.draft, card.draft_bytes)}")


_FITS = {
    "yes": "; fits this machine",
    "4bit": "; fits this machine at 4 bits",
    "no": "; too large for this machine",
    None: "",
}


def _fits(pair: "PairItem", room: int | None) -> str | None:
    """Return whether a pair fits into `room` bytes: "yes", "4bit", "no", None if unknown."""
    from dflash_mlx.system.memory import WORKING_SHARE

    if room is None or pair.need_bytes is None:
        return None
    for need, verdict in ((pair.need_bytes, "yes"), (pair.need_4bit_bytes, "4bit")):
        if need is not None and need * (1 + WORKING_SHARE) <= room:
            return verdict
    return "no"


def _need(pair: "PairItem") -> str:
    from dflash_mlx.hub.download import spelled_bytes

    text = spelled_bytes(pair.need_bytes or 0)
    if pair.need_4bit_bytes is not None:
        text += f", {spelled_bytes(pair.need_4bit_bytes)} with the target at 4 bits"
    return text


def _size(item: "Item", announced: int | None = None) -> str:
    from dflash_mlx.hub.download import spelled_bytes

    if item.n_bytes is not None:
        return f"here, {spelled_bytes(item.n_bytes)}"
    return f"not here, about {spelled_bytes(announced)}" if announced else "not here"


def _pair(pair: "PairItem", room: int | None) -> dict[str, Any]:
    card = pair.card
    return {
        "nickname": card.nickname,
        "aliases": card.aliases,
        "family": card.family,
        "block_size": card.block_size,
        "thinking": card.thinking,
        "licence": card.licence,
        "target": {**_item(pair.target), "revision": card.target_revision},
        "draft": {**_item(pair.draft), "revision": card.draft_revision},
        "need_bytes": pair.need_bytes,
        "need_4bit_bytes": pair.need_4bit_bytes,
        "fits": _fits(pair, room),
        "builds_here": [_item(item) for item in pair.targets],
        "note": card.note,
    }


def _item(item: "Item") -> dict[str, Any]:
    path = str(item.path) if item.path else None
    return {"reference": item.reference, "path": path, "bytes": item.n_bytes}
