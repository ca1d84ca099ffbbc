"""From what a person typed to a folder or file here, with what is known of its origin."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.hub import resolve as hub
from dflash_mlx.hub.pins import Pins
from dflash_mlx.pairs import registry
from dflash_mlx.system.paths import is_there, typed_path
from dflash_mlx.system.settings import settings_folder

_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt")
_CARDS = ("README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")


@dataclass(frozen=True)
class SourceLocation:
    """A source on this machine. `name` is what a card may say: a hub id, or a local name."""

    name: str
    folder: Path
    file: Path | None = None
    revision: str | None = None
    date: str | None = None


def locate(
    reference: str, revision: str | None, on_step: hub.Step = lambda text: None
) -> SourceLocation:
    """Return where `reference` lies: a path, a nickname's target, or a hub id brought here.

    Raises:
        BadRequest: a file of another kind, or a revision of something that has none.
        UnknownModel, DownloadFailed, UnsupportedModel: what the hub has to say.
    """
    if is_there(path := typed_path(reference)):
        if revision:
            raise BadRequest(f"{reference} is a local path and has no revision {revision!r}")
        return _local(path)
    card = registry.find(reference)
    if card:
        reference, revision = card.target, revision or card.target_revision
    found = hub.resolve(reference, pins=Pins(settings_folder()), revision=revision, on_step=on_step)
    if found.path.is_file():
        return SourceLocation(
            reference, found.path.parent, found.path, found.revision, _day(found.path)
        )
    date = None
    if found.source in ("cache", "hub") and found.revision:
        date = _bring_cards(reference, found.revision, on_step)
    return SourceLocation(reference, found.path, None, found.revision, date)


def _local(path: Path) -> SourceLocation:
    name = path.resolve().name
    if path.is_dir():
        return SourceLocation(name, path, None, None, _day(path / "config.json"))
    if path.suffix not in _SUFFIXES:
        raise BadRequest(
            f"{path} is a file and none of {', '.join(_SUFFIXES)}; give a model's folder"
        )
    return SourceLocation(path.stem, path.parent, path, None, _day(path))


def _day(path: Path) -> str | None:
    """The day a file was last changed, in UTC; None if it is not there."""
    if not path.is_file():
        return None
    changed = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
    return changed.date().isoformat()


def _bring_cards(repository: str, revision: str, on_step: hub.Step) -> str | None:
    """Fetch model card and licence into the hub's cache; return the day of the revision.

    Both are missed, and the conversion is not lost, where the hub cannot be asked.
    """
    from fnmatch import fnmatch

    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=10.0)
        for file in info.siblings or ():
            if any(fnmatch(file.rfilename, pattern) for pattern in _CARDS):
                hf_hub_download(repository, file.rfilename, revision=revision)
    except (HfHubHTTPError, HTTPError, OfflineModeIsEnabled, OSError, DFlashError) as error:
        on_step(f"{repository}: model card and licence not brought ({type(error).__name__})")
        return None
    return info.last_modified.date().isoformat() if info.last_modified else None
