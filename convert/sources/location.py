"""Finds a source on this machine or downloads it, and records where it came from."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import BadRequest
from dflash_mlx.hub import resolve as hub
from dflash_mlx.hub.pins import Pins
from dflash_mlx.pairs import registry
from dflash_mlx.system.foreign import reason
from dflash_mlx.system.paths import is_there, typed_path
from dflash_mlx.system.settings import settings_folder

_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt")
CARD_PATTERNS = ("README*", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")


_TIMEOUT_S = 10.0
"""Seconds to wait for the hub's answer; huggingface_hub's own default."""


@dataclass(frozen=True)
class SourceLocation:
    """A source on this machine.

    Args:
        name: hub id or local name, as a model card may print it.
        folder: the folder of the source, or of its file.
        file: the single file to read; None reads the folder.
        revision: commit on the hub, if known.
        date: day of the last change, in UTC.
    """

    name: str
    folder: Path
    file: Path | None = None
    revision: str | None = None
    date: str | None = None


def locate(
    reference: str, revision: str | None, on_step: hub.OnStep = lambda text: None
) -> SourceLocation:
    """Return the location of a path, a known name or a hub id, downloading what is missing.

    Raises:
        BadRequest: a file of an unsupported type, or a revision of a local path.
        UnknownModel: the name is not a path, a known name or a repository.
        DownloadFailed: the hub cannot be reached or refuses.
        UnsupportedModel: the repository has no weights in a supported format.
    """
    if is_there(path := typed_path(reference)):
        if revision:
            raise BadRequest(
                f"{reference} is a local path, which has no revision {revision!r}; leave out "
                "--revision"
            )
        return _local(path)
    card = registry.find(reference)
    if card:
        reference, revision = card.target, revision or card.target_revision
    found = hub.resolve(reference, pins=Pins(settings_folder()), revision=revision, on_step=on_step)
    if found.path.is_file():
        day = _day(found.path)
        return SourceLocation(reference, found.path.parent, found.path, found.revision, day)
    date = None
    if found.source in ("cache", "hub") and found.revision:
        date = _download_cards(reference, found.revision, on_step)
    return SourceLocation(reference, found.path, None, found.revision, date)


def hub_repository(reference: str, revision: str | None) -> tuple[str, str | None] | None:
    """Return repository and revision of a reference that is not completely on this machine.

    None means a local path, an installed package, or a model in the hub cache.

    Raises:
        UnknownModel: the reference is neither a path nor the name of a repository.
    """
    if is_there(typed_path(reference)):
        return None
    card = registry.find(reference)
    reference = known_repository(reference)
    revision = revision or (card.target_revision if card else None)
    if reference.startswith(("wheel:", "package:")):
        return None
    hub.check_hub_id(reference)
    found = hub.find_here(reference, pins=Pins(settings_folder()), revision=revision)
    return None if found else (reference, revision)


def known_repository(reference: str) -> str:
    """Return the repository that a known name stands for; other references are unchanged."""
    card = registry.find(reference)
    return card.target if card else reference


def _local(path: Path) -> SourceLocation:
    name = path.resolve().name
    if path.is_dir():
        return SourceLocation(name, path, None, None, _day(path / "config.json"))
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        raise BadRequest(
            f"{path} is a file of another type than {', '.join(_SUFFIXES)}; give the folder of a "
            "model"
        )
    return SourceLocation(path.stem, path.parent, path, None, _day(path))


def _day(path: Path) -> str | None:
    """Return the day of a file's last change, in UTC; None if the file does not exist."""
    if not path.is_file():
        return None
    changed = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
    return changed.date().isoformat()


def _download_cards(repository: str, revision: str, on_step: hub.OnStep) -> str | None:
    """Download model card and licence into the hub's cache; return the day of the revision.

    The conversion continues without them if the hub cannot be reached.
    """
    from fnmatch import fnmatch

    from huggingface_hub import HfApi, hf_hub_download

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT_S)
        for file in info.siblings or ():
            if any(fnmatch(file.rfilename, pattern) for pattern in CARD_PATTERNS):
                hf_hub_download(repository, file.rfilename, revision=revision)
    except Exception as error:  # noqa: BLE001  whatever the answer, the conversion continues
        on_step(f"{repository}: no model card and licence downloaded ({reason(error)})")
        return None
    return info.last_modified.date().isoformat() if info.last_modified else None


def revision_date(repository: str, revision: str) -> str | None:
    """Return the day of a commit on the hub; None if the hub does not answer it."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT_S)
        return info.last_modified.date().isoformat() if info.last_modified else None
    except Exception:  # noqa: BLE001  only the model card lacks the day then
        return None
