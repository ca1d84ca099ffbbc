"""`dflash-mlx models`: the known pairs, and the models on this machine."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from dflash_mlx.commands.options import JsonOption
from dflash_mlx.commands.terminal import Terminal

if TYPE_CHECKING:
    from dflash_mlx.hub.inventory import Item, PairItem
    from dflash_mlx.system.machine import Machine


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """Options of `models`."""

    as_json: JsonOption = False


def models(options: ModelsOptions) -> None:
    """List the known pairs and the models on this machine; uses no network."""
    from dflash_mlx.hub.inventory import by_need, cached_here, converted_here, pairs_here
    from dflash_mlx.hub.pins import Pins
    from dflash_mlx.system.machine import this_machine
    from dflash_mlx.system.settings import settings_folder

    pins = Pins(settings_folder())
    pairs, folders = by_need(pairs_here(pins)), converted_here(pins, Terminal().log)
    machine = this_machine()
    usable_bytes = machine.usable_bytes
    known = {name for pair in pairs for name in (pair.target.reference, pair.draft.reference)}
    known |= {name for pair in pairs for name in (*pair.card.targets, pair.card.fallback or "")}
    cached = cached_here(known)
    if options.as_json:
        table = {
            "pairs": [_pair_values(pair, usable_bytes) for pair in pairs],
            "converted": [_item_values(item) for item in folders],
            "cached": [{**_item_values(item), "kind": kind} for item, kind in cached],
        }
        typer.echo(json.dumps(table))
        return
    for pair in pairs:
        _print_pair(pair, usable_bytes)
        if machine.device == "metal" and usable_bytes is not None:
            typer.echo(f"  choice  {_choice(pair, machine, usable_bytes)}")
    for item in folders:
        typer.echo(f"converted  {item.reference}  {_size(item)}")
    for item, kind in cached:
        typer.echo(f"cached {kind}  {item.reference}  {_size(item)}")


def _print_pair(pair: "PairItem", usable_bytes: int | None) -> None:
    card = pair.card
    thinking = {None: "", True: ", thinking on", False: ", thinking off"}[card.thinking]
    aliases = f" ({', '.join(card.aliases)})" if card.aliases else ""
    block = f"block size {card.block_size}" if card.block_size else "block size of the draft"
    typer.echo(f"{card.nickname}{aliases}: {card.family}, {block}{thinking}")
    if pair.need_bytes is not None:
        typer.echo(f"  needs   {_need(pair)}{_FITS[_fits(pair, usable_bytes)]}")
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


def _fits(pair: "PairItem", usable_bytes: int | None) -> str | None:
    """Return "yes", "4bit" (only with the target at 4 bits), "no", or None if unknown."""
    from dflash_mlx.system.machine import WORKING_SHARE

    if usable_bytes is None or pair.need_bytes is None:
        return None
    for need, verdict in ((pair.need_bytes, "yes"), (pair.need_4bit_bytes, "4bit")):
        if need is not None and need * (1 + WORKING_SHARE) <= usable_bytes:
            return verdict
    return "no"


def _choice(pair: "PairItem", machine: "Machine", usable_bytes: int) -> str:
    """Return the precision that doctor would choose on this Mac, without the nickname."""
    from dflash_mlx.doctor.precision import describe_pair
    from dflash_mlx.pairs.precision import PrecisionConfig
    from dflash_mlx.system.chips import GIB, find_chip

    chip = find_chip(machine.chip, (machine.memory_bytes or 0) // GIB)
    line = describe_pair(pair.card, chip, usable_bytes, PrecisionConfig())
    return line.removeprefix(pair.card.nickname).strip()


def _need(pair: "PairItem") -> str:
    from dflash_mlx.hub.download import spelled_bytes

    text = spelled_bytes(pair.need_bytes or 0)
    if pair.need_4bit_bytes is not None:
        text += f", {spelled_bytes(pair.need_4bit_bytes)} with the target at 4 bits"
    return text


def _size(item: "Item", announced: int | None = None) -> str:
    from dflash_mlx.hub.download import spelled_bytes

    if item.n_bytes is not None:
        return f"on this machine, {spelled_bytes(item.n_bytes)}"
    return f"not downloaded, about {spelled_bytes(announced)}" if announced else "not downloaded"


def _pair_values(pair: "PairItem", usable_bytes: int | None) -> dict[str, Any]:
    card = pair.card
    return {
        "nickname": card.nickname,
        "aliases": card.aliases,
        "family": card.family,
        "block_size": card.block_size,
        "thinking": card.thinking,
        "licence": card.licence,
        "target": {**_item_values(pair.target), "revision": card.target_revision},
        "draft": {**_item_values(pair.draft), "revision": card.draft_revision},
        "need_bytes": pair.need_bytes,
        "need_4bit_bytes": pair.need_4bit_bytes,
        "fits": _fits(pair, usable_bytes),
        "builds_here": [_item_values(item) for item in pair.targets],
        "note": card.note,
    }


def _item_values(item: "Item") -> dict[str, Any]:
    path = str(item.path) if item.path else None
    return {"reference": item.reference, "path": path, "bytes": item.n_bytes}
