"""Models on this machine: files of known pairs, converted folders, other cached models."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import Resolved, find_here
from dflash_mlx.models.draft.config_file import is_draft_config
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.pairs.converted import converted
from dflash_mlx.pairs.model_files import check_folder, is_complete

Kind = Literal["target", "draft"]


@dataclass(frozen=True)
class Item:
    """One model. `path` and `n_bytes` are None if it is not on this machine."""

    reference: str
    path: Path | None
    n_bytes: int | None


@dataclass(frozen=True)
class PairItem:
    """A known pair with its local files. `targets` are the local builds of its target."""

    card: PairCard
    target: Item
    draft: Item
    targets: tuple[Item, ...]

    @property
    def need_bytes(self) -> int | None:
        """Bytes of both models' weights as published, None if the card lacks them."""
        card = self.card
        target = self.target.n_bytes or card.target_bytes or (card.parameters or 0) * 2
        return target + self._draft_bytes if target else None

    @property
    def need_4bit_bytes(self) -> int | None:
        """The same with the target at 4 bits; None if it is published in fewer than 16 bits."""
        if self.card.parameters is None or self.card.target_bytes:
            return None
        # 4 bits plus a float16 scale and bias per 64 weights: 4.5 bits, 9/16 of a byte
        return self.card.parameters * 9 // 16 + self._draft_bytes

    @property
    def _draft_bytes(self) -> int:
        return self.draft.n_bytes or self.card.draft_bytes or 0


def by_need(pairs: Iterable[PairItem]) -> list[PairItem]:
    """Return pairs sorted by needed memory, smallest first; unknown needs come last."""
    return sorted(pairs, key=lambda pair: (pair.need_bytes is None, pair.need_bytes or 0))


def pairs_here(pins: Pins) -> list[PairItem]:
    """Return every pair with a nickname and which of its files are on this machine."""
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


def converted_here(pins: Pins, on_notice: Callable[[str], None] = lambda text: None) -> list[Item]:
    """Return the folders that `convert` wrote and that still exist.

    `on_notice` receives a line if the list of them is damaged.
    """
    return [Item(str(path), path, bytes_of(path)) for path in converted(pins.folder, on_notice)]


def cached_here(known: set[str]) -> list[tuple[Item, Kind]]:
    """Return complete models in the hub cache whose names are not in `known`."""
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
    """Return the bytes of a model file, or of all safetensors in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*.safetensors"))


def _item(reference: str, revision: str | None, pins: Pins) -> Item:
    found: Resolved | None = find_here(reference, pins=pins, revision=revision)
    return (
        Item(reference, found.path, bytes_of(found.path)) if found else Item(reference, None, None)
    )


def _kind(folder: Path) -> Kind | None:
    """Return what the folder holds, None if it does not run here."""
    seen: list[dict[str, Any]] = []
    try:
        check_folder(folder, seen.append)
        draft = is_draft_config(seen[0])
    except (BadCheckpoint, UnsupportedModel, OSError):
        return None
    if draft:
        return "draft"
    from dflash_mlx.models.targets.model_types import is_supported

    return "target" if is_supported(seen[0]) else None
