"""What is on this machine: the files of known pairs, converted folders, other cached models."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_mlx.config import PairCard
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.hub.model_folder import check_folder, is_complete
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import Resolved, find_here
from dflash_mlx.models.draft.config_file import is_draft_config
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.converted import converted

Kind = Literal["target", "draft"]


@dataclass(frozen=True)
class Item:
    """One model. `path` and `n_bytes` are None where it is not on this machine."""

    reference: str
    path: Path | None
    n_bytes: int | None


@dataclass(frozen=True)
class PairItem:
    """A card with its files here. `targets` are the builds of its target that are here."""

    card: PairCard
    target: Item
    draft: Item
    targets: tuple[Item, ...]

    @property
    def need_bytes(self) -> int | None:
        """Bytes of both models' weights as published, None where the card does not tell."""
        card = self.card
        target = self.target.n_bytes or card.target_bytes or (card.parameters or 0) * 2
        return target + self._draft_bytes if target else None

    @property
    def need_4bit_bytes(self) -> int | None:
        """The same with the target at 4 bits, scales included, where it is known at 16."""
        if self.card.parameters is None or self.card.target_bytes:
            return None
        return self.card.parameters * 9 // 16 + self._draft_bytes

    @property
    def _draft_bytes(self) -> int:
        return self.draft.n_bytes or self.card.draft_bytes or 0


def by_need(pairs: Iterable[PairItem]) -> list[PairItem]:
    """Return pairs by the memory they need, the smallest first, those that do not tell last."""
    return sorted(pairs, key=lambda pair: (pair.need_bytes is None, pair.need_bytes or 0))


def pairs_here(pins: Pins) -> list[PairItem]:
    """Return every pair that has a nickname, with what of it is on this machine."""
    found = []
    for card in registry.cards():
        builds = (*card.targets, *((card.fallback,) if card.fallback else ()))
        items = [_item(name, None, pins) for name in builds]
        found.append(
            PairItem(
                card,
                _item(card.target, card.target_revision, pins),
                _item(card.draft or "none", card.draft_revision, pins),
                tuple(item for item in items if item.path),
            )
        )
    return found


def converted_here(pins: Pins) -> list[Item]:
    """Return the folders that the converter made and that still are here."""
    return [Item(str(path), path, bytes_of(path)) for path in converted(pins.folder)]


def cached_here(known: set[str]) -> list[tuple[Item, Kind]]:
    """Return complete models of the hub's cache whose names are not among `known`."""
    from huggingface_hub import constants

    found: list[tuple[Item, Kind]] = []
    for home in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*")):
        name = home.name.removeprefix("models--").replace("--", "/")
        snapshots = sorted(home.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
        if name in known or not snapshots or not is_complete(snapshots[-1]):
            continue
        if (kind := _kind(snapshots[-1])) is not None:
            found.append((Item(name, snapshots[-1], bytes_of(snapshots[-1])), kind))
    return found


def bytes_of(path: Path) -> int:
    """Return the bytes of a model's file, or of the weight files in its folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*.safetensors"))


def _item(reference: str, revision: str | None, pins: Pins) -> Item:
    found: Resolved | None = find_here(reference, pins=pins, revision=revision)
    return (
        Item(reference, found.path, bytes_of(found.path)) if found else Item(reference, None, None)
    )


def _kind(folder: Path) -> Kind | None:
    """What the folder holds, None where it is nothing that runs here."""
    seen: list[dict[str, Any]] = []
    try:
        check_folder(folder, seen.append)
    except (BadCheckpoint, UnsupportedModel, OSError):
        return None
    if is_draft_config(seen[0]):
        return "draft"
    from dflash_mlx.models.targets.model_types import is_supported

    return "target" if is_supported(seen[0]) else None
